"""The builder: edits repositories after a person's yes, and commits after a second one.

    a request             waits in start_pending until  /annehmen ID  (it runs next) or  /ablehnen ID
    an accepted job       runs the coder; its changes are stashed and wait in pending_approval
    /freigeben ID         applies and commits them;  /verwerfen ID  drops them

Without an ID a command means the one open case of its sender, with several it lists them. A decision is: claim it,
act, reply, delete the row. Killed anywhere in between, the same command finishes it.

Start it as `python -m agent_codex.builder`, see the package's docstring.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from agent_codex import job
from agent_codex.queue import JOB, Message
from agent_codex.release import committed_anything, discard, ready_to_discard, ready_to_release, release
from agent_codex.role import BUILDER_COMMANDS, Refused, Role, run
from agent_codex.steps import step
from agentstate import adapter
from agentstate.approvals.records import PendingApprovalRecord, StartPendingRecord
from agentstate.errors import AlreadyClaimed, AlreadyPending, Forbidden, NotFound
from agentstate.identity import normalise_sender

ROLE = "builder"
NOTICE = "I am the builder. I change code only after your /annehmen and commit only after your /freigeben."
HELP = "Write what to build, or decide: " + ", ".join(f"{command} ID" for command in BUILDER_COMMANDS) + "."

START_COMMANDS = ("/annehmen", "/ablehnen")


def main() -> int:
    """Deal with one message or accepted job of `builder-inbox/` and return the exit code."""
    return run(ROLE, "builder-", NOTICE, handle)


def handle(role: Role, message: Message) -> None:
    """Deal with one file of the queue: an accepted job, a decision, or a request."""
    if message.kind == JOB:
        job.carry_out(role, message)
        return
    words = message.body.split(maxsplit=1)
    command = words[0].lower() if words else ""
    if command in BUILDER_COMMANDS:
        decide(role, message, command, words[1].strip() if len(words) > 1 else "")
    elif not command or command.startswith("/"):
        raise Refused(HELP)
    else:
        request(role, message)


def request(role: Role, message: Message) -> None:
    """Remember a request until a person says yes; nothing runs before."""
    try:
        adapter.save_start_pending(message.id, message.sender, message.requested_by, message.body)
    except AlreadyPending as error:
        raise Refused(f"The id {message.id} is taken by another job; nothing was changed.") from error
    step("request saved")
    role.reply(message, f"Noted as {message.id}. /annehmen {message.id} starts it, /ablehnen {message.id} drops it.")


# --- decisions -------------------------------------------------------------------------------------------------------


def decide(role: Role, message: Message, command: str, given_id: str) -> None:
    """Claim the case that the command means and carry the decision out."""
    begun = message.notes.get("job")
    # Noted, so that a command without an id still means the same case when a killed run is taken up again.
    job_id = begun or given_id or the_one_open_case(message, command)
    message = role.queue.note(message, job=job_id)
    step("case noted")
    try:
        refuse_if_not_ready(role, message, command, job_id)
        if command in START_COMMANDS:
            start = claim_start(message, command, job_id)
            step("claimed")
            (accept if command == "/annehmen" else reject)(role, message, start)
        else:
            approval = claim_approval(message, command, job_id)
            step("claimed")
            if command == "/freigeben":
                lines = [f"Released {job_id}:", *release(approval)]
            else:
                lines = [f"Discarded {job_id}:", *discard(approval)]
            role.reply(message, "\n  ".join(lines))
            adapter.delete_pending_approval(job_id)
            step("approval deleted")
    except NotFound as error:
        if begun and role.queue.has_reply(message):
            return  # a killed run did it all, and said so; only its file was left
        waiting = "its start" if command in START_COMMANDS else "its release"
        raise Refused(f"No job {job_id} waits for {waiting} (any more).") from error
    except Forbidden as error:
        raise Refused(f"{job_id} is not yours to decide; nothing was changed.") from error
    except AlreadyClaimed as error:
        raise Refused(
            f"{job_id} is being decided already: /{error.by} since {error.at:%Y-%m-%d %H:%M} UTC. "
            "The same command given again finishes that; nothing was changed."
        ) from error


def accept(role: Role, message: Message, start: StartPendingRecord) -> None:
    """Put the job file into the builder's queue; its name is the job id, so putting it twice is putting it once."""
    role.queue.put_once(job_of(start))
    step("job file put")
    role.reply(message, f"Accepted {start.job_id}; it runs next.")
    adapter.delete_start_pending(start.job_id)
    step("start deleted")


def job_of(start: StartPendingRecord) -> Message:
    """Return the job file that is the yes to a request."""
    return Message(start.job_id, start.sender, start.body, start.requested_by, kind=JOB)


def reject(role: Role, message: Message, start: StartPendingRecord) -> None:
    """Forget the request."""
    role.reply(message, f"Rejected {start.job_id}; nothing was run.")
    adapter.delete_start_pending(start.job_id)
    step("start deleted")


def refuse_if_not_ready(role: Role, message: Message, command: str, job_id: str) -> None:
    """Raise `Refused` for what can be seen to stand in the way, so that nothing is claimed in vain.

    A case that is not there or not this person's passes: the claim says so.
    """
    person = normalise_sender(message.sender)
    if command in START_COMMANDS:
        start = adapter.load_start_pending(job_id)
        if start and start.sender == person and command == "/annehmen":
            try:
                role.queue.holds(job_of(start))
            except FileExistsError as error:
                raise Refused(f"{job_id} cannot run now: {error}. Give the command again.") from error
    else:
        approval = adapter.load_pending_approval(job_id)
        if approval and approval.requested_by == person:
            (ready_to_release if command == "/freigeben" else ready_to_discard)(approval)


def claim_start(message: Message, command: str, job_id: str) -> StartPendingRecord:
    """Claim the decision about a start, finishing what a killed run of the same decision began."""
    by = claimant(message, command)
    try:
        return adapter.claim_start(job_id, by, sender=message.sender)
    except AlreadyClaimed as claimed:
        if claimed.by != by:
            raise
    # We hold the role's lock, so the process that claimed it is dead.
    return adapter.claim_start(job_id, by, timedelta(0), sender=message.sender)


def claim_approval(message: Message, command: str, job_id: str) -> PendingApprovalRecord:
    """Claim the decision about a release, finishing what a killed run of the same decision began.

    A release that was refused or killed before its first commit may still be discarded by the same person: else a
    change that does not fit any more could never be got rid of.
    """
    by = claimant(message, command)
    try:
        return adapter.claim_approval(job_id, by, sender=message.sender)
    except AlreadyClaimed as claimed:
        changed_mind = command == "/verwerfen" and claimed.by == claimant(message, "/freigeben")
        approval = adapter.load_pending_approval(job_id)
        if claimed.by != by and not (changed_mind and approval and not committed_anything(approval)):
            raise
    # We hold the role's lock, so the process that claimed it is dead.
    return adapter.claim_approval(job_id, by, timedelta(0), sender=message.sender)


def claimant(message: Message, command: str) -> str:
    """Return what a claim is made by: the decision and the person, so that only the same again may take it over."""
    return f"{command.removeprefix('/')} {normalise_sender(message.sender)}"


def the_one_open_case(message: Message, command: str) -> str:
    """Return the id of the sender's only case that the command can mean; raises `Refused` with a list otherwise."""
    person = normalise_sender(message.sender)
    if command in START_COMMANDS:
        waiting = "start"
        cases = [(start.job_id, start.body) for start in adapter.list_start_pending(person)]
    else:
        waiting = "release"
        approvals = adapter.list_pending_approvals()
        cases = [(found.job_id, found.commit_message) for found in approvals if found.requested_by == person]
    if not cases:
        raise Refused(f"No job of yours waits for its {waiting}.")
    if len(cases) > 1:
        lines = (f"{command} {job_id} — {job.title_of(text)}" for job_id, text in cases)
        raise Refused(f"{len(cases)} jobs of yours wait for their {waiting}; which one?\n" + "\n".join(lines))
    return cases[0][0]


if __name__ == "__main__":
    sys.exit(main())
