"""The uploads of a client in each stage: as templates for the server's checks, and as a text for a site."""

from collections.abc import Iterator

from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.tree import Tree, flatten
from kedge.running.federation.introduction import Membership
from kedge.running.recording.round_costs import StageCosts

PARTS = {"delta": "the change of the shared weights", "buffers": "batch-norm statistics"}


def upload_templates(task: Task) -> list[Tree]:
    """For each stage, an upload with the right names, shapes and dtypes."""
    params, buffers = task.model.init(task.seed)
    return [StageCosts(task, stage, params, buffers).client.upload for stage in task.stages]


def explanation(task: Task, member: Membership) -> Iterator[str]:
    """Lines of text: everything that leaves the client's machine, stage by stage."""
    private = task.privacy.active
    yield "Sent once, before the first round, and again after each new connection:"
    samples = "" if private else f", and the number of your training samples, {member.samples}"
    yield f"  your number {member.client}{samples}"
    yield f"  the names of your labels: {', '.join(member.labels) or 'none given'}"
    evaluates, shares = yes_or_no(member.evaluates), yes_or_no(member.shares)
    yield f"  whether you have a validation set ({evaluates}), and share its metrics ({shares})"
    yield "  for comparison: the version of kedge, the settings of the method, sha256 of the initial network,"
    yield "  the preprocessing (shape, scale, mean and std), sha256 of your own code files, if any"
    yield "Sent in every round in which you take part:"
    if private:
        yield f"  an update whose norm is at most the clip, {task.privacy.clip} at first; no loss, no weight"
    else:
        yield "  the mean training loss, and your weight in the mean, computed from your number of samples"
    for number, (stage, template) in enumerate(zip(task.stages, upload_templates(task), strict=True)):
        if len(task.stages) > 1:
            yield f"  in stage {number + 1} of {len(task.stages)}, {stage.algorithm.name}:"
        yield from stage_lines(stage, template, task.model.statistics != "frozen" and not private)
    yield from metric_lines(task, member)
    yield "The server sees the tensors of each client. Samples and labels stay on this machine."


def metric_lines(task: Task, member: Membership) -> Iterator[str]:
    """The metrics on the validation set that are sent, or would be."""
    tests = [len(samples) for samples in task.federation.local_tests]
    if task.privacy.active:
        yield "No metrics are sent: sites do not evaluate in a private run."
        return
    if not member.evaluates:
        yield "No metrics are sent: you have no validation set (--validation FILE)."
        return
    if not member.shares:
        yield "No metrics on your validation set are sent. With --share-metrics, each evaluation would send:"
    else:
        yield "Sent with each evaluation, because of --share-metrics:"
    yield f"  the number of your validation samples, {tests[0]}; the number classified correctly, and the sum"
    yield "  of the losses, by the server's model; by your own model, if the method has such models; and by"
    yield "  your own model after fine-tuning, if the experiment fine-tunes"


def yes_or_no(value: bool) -> str:
    """The value in words."""
    return "yes" if value else "no"


def stage_lines(stage: Stage, template: Tree, statistics: bool) -> Iterator[str]:
    """The tensors of a stage's upload, with their shapes."""
    for part, meaning in PARTS.items():
        tensors = flatten(template[part]) if part == "delta" or statistics else {}
        if tensors:
            sizes = sum(v.numel() for v in tensors.values())
            yield f"  {part}: {meaning}, {len(tensors)} tensors with {sizes:,} numbers"
    for correction in stage.algorithm.corrections:
        tensors = flatten(template["slots"][correction.name])
        if not tensors:
            continue
        yield f"  {correction.name}: {', '.join(f'{k} {list(v.shape)}' for k, v in tensors.items())}"
        if correction.needs_class_means:
            yield (
                "    computed from your labels: the mean features of each class of your data, and the share "
                "of each class in your samples. The server learns which classes you have, and how often"
            )
