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
from kedge.audit.oracles import personal as oracle_personal
from kedge.audit.references.personal_reductions import (
    fedrod_of_one_client,
    fedrod_shares_balanced_fedavg,
    frozen_head_isolates_clients,
    head_trains,
    one_client_is_sgd,
    open_all,
    open_body,
    open_head_for_two_epochs,
)
from kedge.audit.references.reductions import methods_agree
from kedge.audit.registry.methods import AUDITED
from kedge.audit.registry.server_rules import fedavg_under

BY_SIZE, UNIFORM = "server_p (size weighted)", "server_p (uniform, official)"


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers and with closed forms."""
    return [
        ("fedavg", "two parameters", partial(oracle_personal.fedavg, fedavg())),
        ("fedper", "two parameters", partial(oracle_personal.fedper, fedper())),
        ("fedper", "a client keeps its head", partial(oracle_personal.kept_leaf_waits, fedper(), "p")),
        ("fedper", "fine-tuned", partial(oracle_personal.fedper_tuned, fedper())),
        ("lg-fedavg", "two parameters, by size", partial(oracle_personal.lg_fedavg, lg_fedavg(), BY_SIZE)),
        (
            "lg-fedavg",
            "two parameters, uniform",
            partial(oracle_personal.lg_fedavg, lg_fedavg(weights="uniform"), UNIFORM),
        ),
        (
            "lg-fedavg",
            "a client keeps its body",
            partial(oracle_personal.kept_leaf_waits, lg_fedavg(), "s"),
        ),
        ("fedrep", "two parameters", partial(oracle_personal.fedrep, fedrep())),
        ("fedbabu", "two parameters", partial(oracle_personal.fedbabu, fedbabu())),
        ("fedbabu", "fine-tuned", partial(oracle_personal.fedbabu_tuned, fedbabu(), "all")),
        ("fedbabu", "fine-tuned, head alone", partial(oracle_personal.fedbabu_tuned, fedbabu(), "head")),
        ("fedbabu", "fine-tuned, body alone", partial(oracle_personal.fedbabu_tuned, fedbabu(), "body")),
        ("fedrod", "losses and slopes", partial(oracle_fedrod.fedrod, fedrod())),
        ("fedrod", "a class without samples", partial(oracle_fedrod.absent_class, fedrod())),
        ("fedrod", "predictions", partial(oracle_fedrod.predictions, fedrod())),
    ]


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method, or torch.optim.SGD."""
    sgd, alone = "one client is torch.optim.SGD", "with a frozen head, every client trains alone"
    staged, frozen_head = fedrep(head_share=2 / 3), AUDITED["vanilla+fedbabu"]
    return [
        ("fedper", sgd, partial(one_client_is_sgd, fedper(), open_all)),
        ("lg-fedavg", sgd, partial(one_client_is_sgd, lg_fedavg(), open_all)),
        ("lg-fedavg", alone, partial(frozen_head_isolates_clients, lg_fedavg())),
        ("fedrep", sgd, partial(one_client_is_sgd, staged, open_head_for_two_epochs)),
        ("fedbabu", sgd, partial(one_client_is_sgd, fedbabu(), open_body)),
        ("fedbabu", "is fix-last over fedavg", partial(methods_agree, fedbabu(), fedavg_under(fix_last()))),
        ("fedrod", sgd, partial(fedrod_of_one_client, fedrod())),
        ("fedrod", "shares fedavg of the balanced loss", partial(fedrod_shares_balanced_fedavg, fedrod())),
        ("vanilla+fedbabu", "the head never trains", partial(head_trains, frozen_head, False)),
        ("vanilla", "over fedavg the head trains", partial(head_trains, fedavg_under(vanilla((0, 2))), True)),
    ]
