"""Names of Flower that are not public, and its settings: no telemetry, no update check, no installs.

Flower's commands poll every three seconds, start a process for each message and install the requirements
of an app. kedge therefore uses Flower's parts themselves: the SuperLink's web application and state, and the
SuperNode's client of the Fleet API. Every module of kedge takes Flower's names from here, because the
settings must precede the import.
"""

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message.array import Array
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, HEARTBEAT_PATIENCE, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

logging.getLogger("flwr").setLevel(logging.CRITICAL)

__all__ = [
    "HEARTBEAT_MIN_INTERVAL",
    "HEARTBEAT_PATIENCE",
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
    "InMemoryLinkState",
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
    "remove_content_from_message",
]
