"""Private steps on what Accelerate prepared for two processes; run by torchrun."""

import accelerate
import torch
from test_accelerate import pieces, plan
from torch import nn

from noisewise.accelerate import make_private


def main():
    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(*pieces())
    run = make_private(accelerator, model, optimizer, nn.CrossEntropyLoss(), loader, plan())
    for x, y in run.loader:
        run.step(x, y)
        schedule.step()
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    steps = run.statement().steps if accelerator.is_main_process else run.steps_taken
    print(f"weights {total!r} steps {steps} wrapped {type(model).__name__}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
