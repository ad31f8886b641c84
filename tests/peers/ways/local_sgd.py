"""accelerate's LocalSGD: the mean of all weights every 32 steps, tensor by tensor, in fp32."""

from ways.ddp import command  # noqa: F401  (what `accelerate launch` starts for processes on CPUs)

PERIOD = 32


def train(task):
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    task.ready()
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=PERIOD) as local_sgd:
        for step in range(task.steps):
            task.step(step, model, optimizer, accelerator.backward)
            local_sgd.step()
    values = task.values()
    accelerator.end_training()
    return values
