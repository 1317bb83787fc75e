"""What is sent for the next answer is what was said, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsplit.client import ChatMessage, ChatPrompt, Conversation, Exchange

conversations = st.builds(Conversation, st.text(), st.lists(st.builds(Exchange, st.text(), st.text())).map(tuple))


def test_a_prompt_has_the_system_message_every_turn_and_the_question() -> None:
    conversation = Conversation("Be brief.").answered("one?", "1").answered("two?", "2")
    assert conversation.asking("three?") == ChatPrompt(
        (
            ChatMessage("system", "Be brief."),
            ChatMessage("user", "one?"),
            ChatMessage("assistant", "1"),
            ChatMessage("user", "two?"),
            ChatMessage("assistant", "2"),
            ChatMessage("user", "three?"),
        )
    )


def test_without_a_system_prompt_no_message_is_sent_for_it() -> None:
    assert Conversation().asking("hi") == ChatPrompt((ChatMessage("user", "hi"),))


@given(conversations, st.text(), st.text())
def test_a_turn_that_is_added_and_taken_back_leaves_no_trace(
    conversation: Conversation, question: str, answer: str
) -> None:
    assert conversation.answered(question, answer).undone() == conversation


@given(conversations, st.text(), st.text(), st.text())
def test_what_is_sent_grows_by_the_answer_and_the_next_question(
    conversation: Conversation, question: str, answer: str, following: str
) -> None:
    """So the verifier has the KV of all that was sent before."""
    before = conversation.asking(question).messages
    after = conversation.answered(question, answer).asking(following).messages
    assert after == (*before, ChatMessage("assistant", answer), ChatMessage("user", following))


@given(conversations)
def test_roles_take_turns_behind_the_system_message(conversation: Conversation) -> None:
    roles = [message.role for message in conversation.asking("?").messages if message.role != "system"]
    assert roles == ["user", "assistant"] * len(conversation.exchanges) + ["user"]


@given(conversations)
def test_begun_anew_it_is_told_the_same_and_has_no_turns(conversation: Conversation) -> None:
    assert conversation.begun_anew() == Conversation(conversation.system)


def test_there_is_nothing_to_take_back_at_the_beginning() -> None:
    assert Conversation("x").undone() == Conversation("x")
