"""A private trainer in several processes; torchrun runs ``trainer_program.py FOLDER [resume]``."""

import sys

import making_trainers as making
import torch
from transformers import TrainerCallback


class Stopping(TrainerCallback):
    """Ends training in the middle of the plan."""

    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = state.global_step == 3


def main(folder, resume):
    torch.set_num_threads(1)
    trainer = making.trainer(
        folder,
        eval_dataset=making.texts(seed=2),
        args=dict(save_strategy="steps", save_steps=2, eval_strategy="epoch"),
        callbacks=None if resume else [Stopping()],
    )
    trainer.train(resume_from_checkpoint=resume or None)
    total = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
    wrapped = type(trainer.model_wrapped).__name__
    epsilon = trainer.state.log_history[-1]["epsilon"]
    print(f"weights {total!r} steps {trainer.state.global_step} {wrapped} {epsilon}", flush=True)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], "resume" in sys.argv[2:])
