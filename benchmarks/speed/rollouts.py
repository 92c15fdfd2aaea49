"""Groups of rollouts: answers of a given length to prompts of a given length, with rewards, and the work that they ask
for."""

import dataclasses
import json
import random
from pathlib import Path

from speed.workload import Case, _flops, _Writer

SHARED, SEPARATE = "rollouts.jsonl", "separate.jsonl"
SCALE_EPSILON = 1e-4  # that GRPO adds to a group's standard deviation


@dataclasses.dataclass(frozen=True)
class GroupCase(Case):
    """`tokens` are those of a prompt with one answer."""

    prompt: int  # tokens
    generations: int  # answers of a group
    beta: float  # of KL; 0: no reference model
    ranks: int  # processes that share a row

    @property
    def answer(self) -> int:
        return self.tokens - self.prompt

    @property
    def name(self) -> str:
        how = "on" if self.checkpointing else "off"
        ranks = f"-ranks{self.ranks}" if self.ranks > 1 else ""
        return f"P{self.prompt}-{self.generations}x{self.answer}-beta{self.beta:g}-checkpointing-{how}{ranks}"


def group_case(prompt: int, generations: int, answer: int, vocab: int, beta: float, checkpointing: bool,
               ranks: int = 1) -> GroupCase:
    tokens = prompt + answer
    return GroupCase(tokens, vocab, answer / tokens, checkpointing, prompt, generations, beta, ranks)


def group_flops(case: GroupCase, share_prompt: bool) -> dict[str, float]:
    """One step on one group, by the rules of workload.model_flops: forward and backward of the model and, with beta,
    forward of the reference. A shared prompt is counted once, but for its last token, which predicts the first token
    of each answer."""
    shared = case.prompt - 1 if share_prompt else 0
    repeated = (case.generations - 1) * shared
    pairs = case.generations * case.tokens * (case.tokens + 1) / 2 - repeated * (shared + 1) / 2
    return _flops(case, case.generations * case.tokens - repeated, pairs, case.generations * case.answer,
                  passes=4 if case.beta else 3)


def advantages(rewards: list[float]) -> list[float]:
    """GRPO's: (reward - mean) / (standard deviation + epsilon)."""
    mean = sum(rewards) / len(rewards)
    std = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
    return [(reward - mean) / (std + SCALE_EPSILON) for reward in rewards]


def make_groups(folder: Path, checkpoint: Path, case: GroupCase, count: int) -> int:
    """Writes `count` groups: as rollouts (SHARED); as rollouts whose groups have one rollout each, with an advantage in
    the place of its reward, so that nothing is shared (SEPARATE); and as ids (tokens.json). Returns the labels of a
    group."""
    writer, chance = _Writer(checkpoint, case), random.Random(case.generations)
    shared, separate, tokens = [], [], []
    for number in range(count):
        _, prompt = writer.prompt()
        answers = [writer.answer()[1] for _ in range(case.generations)]
        rewards = [round(chance.uniform(0, 1), 3) for _ in answers]
        tokens.append({"prompt_ids": prompt, "answers": answers, "rewards": rewards})
        assert {len(prompt + answer) for answer in answers} == {case.tokens}
        for i, (answer, reward, advantage) in enumerate(zip(answers, rewards, advantages(rewards))):
            ids = {"prompt_ids": prompt, "completion_ids": answer}
            shared.append({"group": f"{number}"} | ids | {"reward": reward})
            separate.append({"group": f"{number}.{i}"} | ids | {"advantage": advantage})
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in ((SHARED, shared), (SEPARATE, separate)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "tokens.json").write_text(json.dumps(tokens))
    return case.generations * case.answer
