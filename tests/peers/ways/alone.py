"""Sites that never hear of each other: what the harness itself costs, and what one site learns alone."""


def train(task):
    task.ready()
    for step in range(task.steps):
        task.step(step)
    return task.values()
