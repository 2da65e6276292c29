"""Random objects similar to entries, and invariants of their events."""

import json
from typing import Any

from hypothesis import strategies as st

from pimono_sdpo.traces.events import Event

_WORDS = st.sampled_from(
    """user assistant tool system developer message text tool_use tool_result function_call
    function_call_output custom_tool_call local_shell_call_output session_start session_meta
    response_item event_msg compacted turn_aborted user_message error thread_rolled_back summary
    compact_boundary compaction_state attachment queued_command hook_x input_text write_stdin
    exec_command Bash shell c1 c2 bash -lc exec wait item_completed item.completed CommandExecution FileChange
    McpToolCall UserMessage AgentMessage exec_command_end patch_apply_end mcp_tool_call_end agent_message
    command_execution user_shell failed declined unknown user.text web_search_call AskUserQuestion
    ses_1 msg_1 prt_1 session sessions message messages part parts tool_calls tool_result_events question step-start
    compaction completed errored blocked subagent 1 0
    user.message assistant.message tool.execution_start tool.execution_complete tool.user_requested
    session.snapshot_rewind session.compaction_complete permission.completed abort str_replace_editor
    gemini info run_shell_command chat_compression cancelled real_user""".split()
) | st.sampled_from(
    [
        "[Request interrupted by user]",
        "The user doesn't want to proceed with this tool use. the user said:\nno",
        "<system-reminder>x</system-reminder>",
        "<system-reminder>",
        "<command-name>/go</command-name><command-args>two words</command-args>",
        "Exit code: 1\nWall time: 1 seconds\nOutput:\nx",
        "Process exited with code 1\nProcess running with session ID 7\nOutput:\n",
        '{"output": "x", "metadata": {"exit_code": 2}}',
        '{"cmd": "ls", "session_id": 7}',
        'const r = await tools.exec_command({cmd: "ls"}); text(r.output); await tools.write_stdin({session_id: 7})',
        "Script running with cell ID 7\nWall time 0.1 seconds\nOutput:\n",
        "Script failed\nWall time 0.1 seconds\nOutput:\n",
        "Script error:\nx",
        '{"cell_id": "7"}',
        '{"exit_code": 1, "output": "x"}',
        '<send_user_message_question_reply>[{"questionItemId": "[1, 2]", "answer": "x"}]</send_user_message_question_reply>',
        'User has answered your questions: "a"="b". You can now continue',
        "\x1b[31m",
        "x\n<exited with exit code 1>",
        "Output: x\nExit Code: 1\nProcess Group PGID: 7",
    ]
)
_KEYS = st.sampled_from(
    """type message content role id uuid parentUuid parentId text name input arguments call_id
    tool_use_id toolCalls toolCallId function is_error isSidechain isMeta isCompactSummary
    payload output metadata exit_code action command cmd reason num_turns attachment prompt
    source_uuid origin kind anchorMessage summary timestamp source harness session_id chars stop_reason
    subtype isApiErrorMessage model exitCode error cwd item id process_id changes content_items invocation
    aggregated_output result isError status internal_chat_message_metadata_passthrough content_item_kinds
    client_authored questions answers unified_diff move_path server tool version table data info messages parts
    sessionID session_id messageID message_id parent_id revert state callID synthetic ignored time created end options
    label tail_start_id directory tool_calls tool_call_id compacted active model_config parent_session_id
    finish_reason ordinal call_index message_id tool_name input_json result_content is_sidechain is_system agent
    tool_call_message_ordinal display_kind session_start started_at
    client_authored questions answers unified_diff move_path server tool version
    data toolRequests arguments toolName upToEventId source contents agentId feedback parts functionCall
    functionResponse args response toolCalls displayContent $rewindTo $set messages provenance systemPayload
    compressedHistory displayText toolCallResult directories""".split()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=6),
    max_leaves=25,
)
ENTRIES = st.lists(st.dictionaries(_KEYS, JSON, max_size=8), max_size=8)


def check(events: list[Event]) -> None:
    """Check for every reader that events are numbered, results have a call and arguments are JSON."""
    assert [event.index for event in events] == list(range(len(events)))
    calls = {event.call_id for event in events if event.kind == "tool_call"}
    for event in events:
        if event.kind == "tool_result":
            assert event.call_id in calls | {""}
        if event.kind == "tool_call":
            json.loads(event.arguments)
        event.text.encode()


def kinds(events: list[Event]) -> list[str]:
    """Return the kinds of all events but `other`."""
    return [event.kind for event in events if event.kind != "other"]


def texts(events: list[Event], kind: str) -> list[str]:
    """Return the texts of one kind."""
    return [event.text for event in events if event.kind == kind]


def envelope(**entry: Any) -> dict[str, Any]:
    """Return an entry with a time."""
    return {"timestamp": "2026-01-02T03:04:05Z", **entry}
