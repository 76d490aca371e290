"""The checks of methods that keep a part with the client, or fine-tune one, by method."""

from collections.abc import Callable
from functools import partial

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.fedper import fedper
from kedge.algorithms.fedrep import fedrep
from kedge.algorithms.fedrod import fedrod
from kedge.algorithms.fix_last import fix_last
from kedge.algorithms.layer_expansion import vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg
from kedge.audit.finding import Finding
from kedge.audit.oracles import fedrod as oracle_fedrod
from kedge.audit.oracles import personal as two
from kedge.audit.references import personal_reductions as alone
from kedge.audit.references import reductions
from kedge.audit.registry.methods import AUDITED
from kedge.audit.registry.server_rules import under

Rows = list[tuple[str, str, Callable[[], Finding]]]

BY_SIZE, UNIFORM = "server_p (size weighted)", "server_p (uniform, official)"


def oracles() -> Rows:
    """The specification's numbers, and answers by hand."""
    return [
        ("fedavg", "two parameters", partial(two.fedavg, fedavg())),
        ("fedper", "two parameters", partial(two.fedper, fedper())),
        ("fedper", "a head waits for its client", partial(two.between, fedper(), "p")),
        ("fedper", "fine-tuned", partial(two.tuned_with_own_head, fedper())),
        ("lg-fedavg", "two parameters, by size", partial(two.lg_fedavg, lg_fedavg(), BY_SIZE)),
        (
            "lg-fedavg",
            "two parameters, uniform",
            partial(two.lg_fedavg, lg_fedavg(weights="uniform"), UNIFORM),
        ),
        ("lg-fedavg", "a base waits for its client", partial(two.between, lg_fedavg(), "s")),
        ("fedrep", "two parameters", partial(two.fedrep, fedrep())),
        ("fedbabu", "two parameters", partial(two.fedbabu, fedbabu())),
        ("fedbabu", "fine-tuned", partial(two.tuned, fedbabu(), "all")),
        ("fedbabu", "fine-tuned, head alone", partial(two.tuned, fedbabu(), "head")),
        ("fedbabu", "fine-tuned, body alone", partial(two.tuned, fedbabu(), "body")),
        ("fedrod", "losses and slopes", partial(oracle_fedrod.fedrod, fedrod())),
        ("fedrod", "a class the client lacks", partial(oracle_fedrod.absent_class, fedrod())),
        ("fedrod", "what it answers", partial(oracle_fedrod.answers, fedrod())),
    ]


def reduced() -> Rows:
    """Methods that must be another one."""
    one = "one client is torch.optim.SGD"
    staged = fedrep(head_share=2 / 3)
    return [
        ("fedper", one, partial(alone.one_client, fedper(), alone.every_unit)),
        ("lg-fedavg", one, partial(alone.one_client, lg_fedavg(), alone.every_unit)),
        ("lg-fedavg", "under a frozen head all train alone", partial(alone.under_a_frozen_head, lg_fedavg())),
        ("fedrep", one, partial(alone.one_client, staged, alone.head_for_two_epochs)),
        ("fedbabu", one, partial(alone.one_client, fedbabu(), alone.base_alone)),
        ("fedbabu", "is fix-last over fedavg", partial(reductions.same, fedbabu(), under(fix_last()))),
        ("fedrod", one, partial(alone.fedrod_alone, fedrod())),
        ("fedrod", "shares fedavg of the balanced loss", partial(alone.fedrod_generic, fedrod())),
        ("vanilla+fedbabu", "the head rests", partial(alone.head_moves, AUDITED["vanilla+fedbabu"], False)),
        ("vanilla", "over fedavg the head trains", partial(alone.head_moves, under(vanilla((0, 2))), True)),
    ]
