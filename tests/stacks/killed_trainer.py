"""A trainer in a process of its own, which can be killed in the middle of a step.

Run: ``python killed_trainer.py FOLDER seed|secret [KILL_AFTER] [resume]``
"""

import os
import signal
import sys

import making_trainers as making
import torch
from transformers import TrainerCallback


class KilledAfter(TrainerCallback):
    """Ends the process after the charge of a step, before the trainer has counted it."""

    def __init__(self, step):
        self.step = step

    def on_optimizer_step(self, args, state, control, **more):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, kind, kill_after=0, resume=False):
    torch.set_num_threads(1)
    trainer = making.trainer(
        folder,
        the_plan=making.plan(seed=3 if kind == "seed" else None, steps=9),
        args=dict(save_strategy="steps", save_steps=3, lr_scheduler_type="cosine"),
        callbacks=[KilledAfter(kill_after)] if kill_after else None,
    )
    trainer.train(resume_from_checkpoint=resume or None)
    print("weights", sum(float(p.double().abs().sum()) for p in trainer.model.parameters()))
    print("rate", trainer.lr_scheduler.get_last_lr()[0], trainer.lr_scheduler.last_epoch)
    print("steps", trainer.state.global_step)
    print("epsilon", trainer.state.log_history[-1]["epsilon"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "resume" in sys.argv[4:])
