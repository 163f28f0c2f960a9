"""Whether what a report said of a program is true: judged by hand, by reading the program."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An answer for the table, and why.

    It holds for reports with these findings and this verdict, whatever its figures.
    """

    on: str
    verdict: str
    found: tuple[str, ...] = ()
    answer: str
    reason: str


NO_FAULT = "No fault was found."

JUDGEMENTS = {
    "vae": Judgement(
        on="2026-11-28",
        verdict="Each step waits 49.5 ms (43.0 ms to 56.6 ms) for its data, 30 % of its time (main.py:37).",
        found=("input_stall main.py:37",),
        answer="true",
        reason="The loader has no workers; alone, it takes 10 ms of CPU per batch, of 23 ms per step in all.",
    ),
    "mnist": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="Two convolutions take most of it; the loader, without workers, 3.5 ms of CPU per batch of some 100.",
    ),
    "actor_critic": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="The environment and the policy take the time; the action is read as a number, which the loop needs.",
    ),
    "time_sequence_prediction": Judgement(
        on="2026-11-28",
        verdict="Too little was recorded: 10 of 27 checks could look.",
        answer="true",
        reason="Eight steps of L-BFGS are too few for most checks, and each too large for a window, which is said.",
    ),
    "dcgan": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="Values are read after each batch, which costs nothing on a CPU; the fake images are detached.",
    ),
    "gat": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="Dense attention over all pairs of papers takes the time, at the lines that are named.",
    ),
    "word_language_model": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="The hidden state is detached, the loss read as a number; updates by hand are recognised, and said.",
    ),
    "nanoGPT": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="The loss is read every ten steps; compiling, which is advised, is what the command turned off.",
    ),
    "makemore": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="Four workers load ahead; the loss is read every ten steps.",
    ),
    "tiny-diffusion": Judgement(
        on="2026-11-29",
        verdict="471 ms, 35 % of the training time, went to 2 long steps at ddpm.py:214.",
        found=("long_steps ddpm.py:214",),
        answer="true",
        reason="Each of two short epochs ends in 50 steps of sampling, a third of the time, at this line.",
    ),
    "pygcn": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="Most of the time goes to the dense product of all papers' words, the line that is named.",
    ),
    "LTSF-Linear": Judgement(
        on="2026-11-29",
        verdict=NO_FAULT,
        answer="true",
        reason="Two workers load for one thread on two cores; a validation builds no graph, losses are read.",
    ),
    "ppo": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="There is no fault; steps with a rollout are long, which the bar of the run's time shows.",
    ),
    "lightning": Judgement(
        on="2026-11-29",
        verdict=NO_FAULT,
        answer="true",
        reason="No workers: one won 10 % with one thread of torch, measured without efprof, and lost 40 % with two.",
    ),
    "accelerate": Judgement(
        on="2026-11-28",
        verdict=NO_FAULT,
        answer="true",
        reason="The model takes three quarters; an update for each three batches, as the command says.",
    ),
}
