"""The checks of methods in which clients keep a part of the model or fine-tune a copy."""

from functools import partial

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.fedbabu import fedbabu
from kedge.algorithms.fedper import fedper
from kedge.algorithms.fedrep import fedrep
from kedge.algorithms.fedrod import fedrod
from kedge.algorithms.fix_last import fix_last
from kedge.algorithms.layer_expansion import vanilla
from kedge.algorithms.lg_fedavg import lg_fedavg
from kedge.audit.check import Entries
from kedge.audit.oracles import fedrod as oracle_fedrod
from kedge.audit.oracles import personal as two
from kedge.audit.references import personal_reductions as alone
from kedge.audit.references import reductions
from kedge.audit.registry.methods import AUDITED
from kedge.audit.registry.server_rules import fedavg_under

BY_SIZE, UNIFORM = "server_p (size weighted)", "server_p (uniform, official)"


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers and with closed forms."""
    return [
        ("fedavg", "two parameters", partial(two.fedavg, fedavg())),
        ("fedper", "two parameters", partial(two.fedper, fedper())),
        ("fedper", "a head waits for its client", partial(two.kept_leaf_waits, fedper(), "p")),
        ("fedper", "fine-tuned", partial(two.fedper_tuned, fedper())),
        ("lg-fedavg", "two parameters, by size", partial(two.lg_fedavg, lg_fedavg(), BY_SIZE)),
        (
            "lg-fedavg",
            "two parameters, uniform",
            partial(two.lg_fedavg, lg_fedavg(weights="uniform"), UNIFORM),
        ),
        ("lg-fedavg", "a base waits for its client", partial(two.kept_leaf_waits, lg_fedavg(), "s")),
        ("fedrep", "two parameters", partial(two.fedrep, fedrep())),
        ("fedbabu", "two parameters", partial(two.fedbabu, fedbabu())),
        ("fedbabu", "fine-tuned", partial(two.fedbabu_tuned, fedbabu(), "all")),
        ("fedbabu", "fine-tuned, head alone", partial(two.fedbabu_tuned, fedbabu(), "head")),
        ("fedbabu", "fine-tuned, body alone", partial(two.fedbabu_tuned, fedbabu(), "body")),
        ("fedrod", "losses and slopes", partial(oracle_fedrod.fedrod, fedrod())),
        ("fedrod", "a class the client lacks", partial(oracle_fedrod.absent_class, fedrod())),
        ("fedrod", "predictions", partial(oracle_fedrod.predictions, fedrod())),
    ]


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method, or torch.optim.SGD."""
    one = "one client is torch.optim.SGD"
    staged = fedrep(head_share=2 / 3)
    return [
        ("fedper", one, partial(alone.one_client_is_sgd, fedper(), alone.open_all)),
        ("lg-fedavg", one, partial(alone.one_client_is_sgd, lg_fedavg(), alone.open_all)),
        (
            "lg-fedavg",
            "with a frozen head, every client trains alone",
            partial(alone.frozen_head_isolates_clients, lg_fedavg()),
        ),
        ("fedrep", one, partial(alone.one_client_is_sgd, staged, alone.open_head_for_two_epochs)),
        ("fedbabu", one, partial(alone.one_client_is_sgd, fedbabu(), alone.open_body)),
        (
            "fedbabu",
            "is fix-last over fedavg",
            partial(reductions.methods_agree, fedbabu(), fedavg_under(fix_last())),
        ),
        ("fedrod", one, partial(alone.fedrod_of_one_client, fedrod())),
        (
            "fedrod",
            "shares fedavg of the balanced loss",
            partial(alone.fedrod_shares_balanced_fedavg, fedrod()),
        ),
        (
            "vanilla+fedbabu",
            "the head never trains",
            partial(alone.head_trains, AUDITED["vanilla+fedbabu"], False),
        ),
        (
            "vanilla",
            "over fedavg the head trains",
            partial(alone.head_trains, fedavg_under(vanilla((0, 2))), True),
        ),
    ]
