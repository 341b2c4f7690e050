"""The committed protobuf modules are what the .proto files give, and say what the specifications say."""

from __future__ import annotations

import sys

from flashboot_agent.door.proto import csi_pb2, pluginregistration_pb2
from tools.generate_protos import stale


def test_generated_files_are_up_to_date() -> None:
    assert stale() == [], "run tools/generate_protos.py"
    assert "grpc_tools._protoc_compiler" not in sys.modules, "the tests of NIXL could not be run in this process"


def test_field_numbers_are_those_of_the_specifications() -> None:
    """Field numbers are the wire; a typo there would be silent."""
    numbers = {
        message.full_name: {field.name: field.number for field in message.fields}
        for file in (csi_pb2.DESCRIPTOR, pluginregistration_pb2.DESCRIPTOR)
        for message in file.message_types_by_name.values()
        if message.fields
    }
    assert numbers == {
        "csi.v1.GetPluginInfoResponse": {"name": 1, "vendor_version": 2},
        "csi.v1.NodePublishVolumeRequest": {"volume_id": 1, "target_path": 4, "volume_context": 8},
        "csi.v1.NodeUnpublishVolumeRequest": {"volume_id": 1, "target_path": 2},
        "csi.v1.NodeGetInfoResponse": {"node_id": 1},
        "pluginregistration.PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
        "pluginregistration.RegistrationStatus": {"plugin_registered": 1, "error": 2},
    }
