"""Names of Flower that are not public, and its settings: no telemetry, no update check, no installs.

Flower's commands poll every three seconds, start a process for each message and install what an app asks
for. kedge therefore uses Flower's parts themselves: the SuperLink's web application and state, and the
SuperNode's client of the Fleet API. Every module of kedge takes Flower's names from here, so that the settings
are made before Flower is imported.
"""

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict  # noqa: E402
from flwr.app.message import remove_content_from_message  # noqa: E402
from flwr.app.message.array import Array  # noqa: E402
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID  # noqa: E402
from flwr.common.serde import message_from_proto, message_to_proto  # noqa: E402
from flwr.proto.fleet_pb2 import (  # noqa: E402
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest  # noqa: E402
from flwr.proto.message_pb2 import (  # noqa: E402
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.server.superlink.linkstate import LinkState  # noqa: E402
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType  # noqa: E402
from flwr.supercore.heartbeat import HeartbeatSender  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (  # noqa: E402
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: E402
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.superlink.main import create_app  # noqa: E402
from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: E402
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # noqa: E402

logging.getLogger("flwr").setLevel(logging.CRITICAL)

__all__ = [
    "HEARTBEAT_MIN_INTERVAL",
    "NOOP_ACCOUNT_NAME",
    "NOOP_FEDERATION_ID",
    "NOOP_FLWR_AID",
    "ActivateNodeRequest",
    "Array",
    "ArrayRecord",
    "ConfigRecord",
    "ConfirmMessageReceivedRequest",
    "DeactivateNodeRequest",
    "FleetHttpClient",
    "HeartbeatSender",
    "LinkState",
    "Message",
    "Node",
    "NodeAuthHttpInterceptor",
    "NodeStatus",
    "ObjectTree",
    "PullMessagesRequest",
    "PullObjectRequest",
    "PushMessagesRequest",
    "PushObjectRequest",
    "RecordDict",
    "RegisterNodeFleetRequest",
    "RuntimeVersionHttpInterceptor",
    "SendNodeHeartbeatRequest",
    "TaskIdentity",
    "TaskType",
    "create_app",
    "generate_key_pairs",
    "get_all_nested_objects",
    "get_object_tree",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "message_from_proto",
    "message_to_proto",
    "no_object_id_recompute",
    "public_key_to_bytes",
    "pull_objects",
    "remove_content_from_message",
]
