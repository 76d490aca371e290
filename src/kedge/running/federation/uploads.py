"""The uploads of a client in each stage: as templates for the server's checks, and as a text for a site."""

from collections.abc import Iterator

from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.tree import Tree, flatten
from kedge.running.recording.round_costs import StageCosts

PARTS = {"delta": "the change of the shared weights", "buffers": "batch-norm statistics"}


def upload_templates(task: Task) -> list[Tree]:
    """For each stage, an upload with the right names, shapes and dtypes."""
    params, buffers = task.model.init(task.seed)
    return [StageCosts(task, stage, params, buffers).client.upload for stage in task.stages]


def explanation(task: Task) -> Iterator[str]:
    """Lines of text: everything that leaves the client's machine, stage by stage."""
    private = task.privacy.active
    samples = "" if private else "the number of your training samples; "
    yield f"Sent once: {samples}fingerprints of kedge, method, network and code."
    yield "Sent in every round in which you take part:"
    if private:
        yield f"  an update whose norm is at most the clip, {task.privacy.clip} at first; no loss, no weight"
    else:
        yield "  the mean training loss, and your weight in the mean, computed from your number of samples"
    for number, (stage, template) in enumerate(zip(task.stages, upload_templates(task), strict=True)):
        if len(task.stages) > 1:
            yield f"  in stage {number + 1} of {len(task.stages)}, {stage.algorithm.name}:"
        yield from stage_lines(stage, template, task.model.statistics != "frozen" and not private)
    yield "The server sees the tensors of each client. Samples and labels stay on this machine."


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
