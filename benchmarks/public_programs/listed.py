"""The fifteen public programs: where each comes from, how it is run, what is edited, and how many steps it makes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.public_programs import made_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The one change of a file: `old` becomes `new` wherever it stands."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A training script of a public repository.

    `checkout` is the folder that holds the repository, below the one that the command is given, and `directory` the one
    within it where the script runs. `num_steps` and `num_micro_batches` were counted without efprof, by a hook on every
    optimizer and on `Tensor.backward`. What `varies` matches differs between any two runs of the program.
    """

    name: str
    repository: str
    checkout: str
    directory: str
    command: tuple[str, ...]
    num_steps: int
    num_micro_batches: int
    make_data: Callable[[Path], None] | None = None
    edits: tuple[Edit, ...] = ()
    varies: tuple[str, ...] = ()
    python_path: str = ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PROGRAMS = (
    Program(
        name="vae",
        repository="pytorch/examples",
        checkout="ex",
        directory="vae",
        command=_words("main.py --epochs 3 --no-accel"),
        make_data=made_data.digits,
        num_steps=225,  # 9,600 images in batches of 128, three times
        num_micro_batches=225,
    ),
    Program(
        name="mnist",
        repository="pytorch/examples",
        checkout="ex",
        directory="mnist",
        command=_words("main.py --epochs 1 --no-accel"),
        make_data=made_data.digits,
        num_steps=150,  # 9,600 images in batches of 64
        num_micro_batches=150,
    ),
    Program(
        name="actor_critic",
        repository="pytorch/examples",
        checkout="ex",
        directory="reinforcement_learning",
        command=_words("actor_critic.py --seed 543"),
        edits=(Edit(file="actor_critic.py", old="in count(1):", new="in range(1, 101):"),),
        num_steps=100,  # episodes
        num_micro_batches=100,
    ),
    Program(
        name="time_sequence_prediction",
        repository="pytorch/examples",
        checkout="ex",
        directory="time_sequence_prediction",
        command=_words("train.py --steps 8"),
        make_data=made_data.sine_waves,
        edits=(
            Edit(file="train.py", old="load('traindata.pt')", new="load('traindata.pt', weights_only=False)"),
            Edit(file="generate_sine_wave.py", old="L = 1000\n", new="L = 100\n"),
        ),
        num_steps=8,
        num_micro_batches=160,  # what L-BFGS evaluates
    ),
    Program(
        name="dcgan",
        repository="pytorch/examples",
        checkout="ex",
        directory="dcgan",
        command=_words("main.py --dataset fake --niter 1 --manualSeed 1 --batchSize 16 --ngf 16 --ndf 16 --workers 1"),
        num_steps=63,  # 1,000 images in batches of 16
        num_micro_batches=189,  # two for the discriminator, one for the generator
    ),
    Program(
        name="gat",
        repository="pytorch/examples",
        checkout="ex",
        directory="gat",
        command=_words("main.py --epochs 40 --num-heads 2 --hidden-dim 16 --no-accel"),
        make_data=made_data.citations_of_gat,
        num_steps=40,
        num_micro_batches=40,
    ),
    Program(
        name="word_language_model",
        repository="pytorch/examples",
        checkout="ex",
        directory="word_language_model",
        command=_words("main.py --epochs 2 --emsize 64 --nhid 64 --log-interval 50"),
        make_data=made_data.sentences,
        num_steps=218,  # 109 in each of two epochs, updates by hand
        num_micro_batches=218,
    ),
    Program(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        checkout="nanogpt",
        directory=".",
        command=_words(
            "train.py config/train_shakespeare_char.py --device=cpu --compile=False --dtype=float32 --dropout=0.0"
            " --eval_iters=5 --eval_interval=50 --log_interval=10 --block_size=64 --batch_size=8 --n_layer=2 --n_head=4"
            " --n_embd=64 --max_iters=120 --gradient_accumulation_steps=4"
        ),
        make_data=made_data.characters,
        varies=(r"mfu -?[\d.]+%",),
        num_steps=121,
        num_micro_batches=484,
    ),
    Program(
        name="makemore",
        repository="karpathy/makemore",
        checkout="makemore",
        directory=".",
        command=_words("makemore.py --max-steps 60 --n-layer 2"),
        make_data=made_data.names,
        num_steps=60,
        num_micro_batches=60,
    ),
    Program(
        name="tiny-diffusion",
        repository="tanelp/tiny-diffusion",
        checkout="tdiff",
        directory=".",
        command=_words("ddpm.py --dataset circle --num_epochs 2"),
        varies=(r"loss=[\d.]+",),  # it sets no seed
        num_steps=500,  # 8,000 points in batches of 32, twice
        num_micro_batches=500,
    ),
    Program(
        name="pygcn",
        repository="tkipf/pygcn",
        checkout="pygcn",
        directory="pygcn",
        command=_words("train.py --epochs 200 --no-cuda"),
        make_data=made_data.citations_of_pygcn,
        python_path="..",
        num_steps=200,
        num_micro_batches=200,
    ),
    Program(
        name="LTSF-Linear",
        repository="cure-lab/LTSF-Linear",
        checkout="ltsf",
        directory=".",
        command=_words(
            "-u run_longExp.py --is_training 1 --model_id made --model DLinear --data custom --root_path ./dataset/"
            " --data_path made.csv --features M --train_epochs 3 --itr 1 --num_workers 2"
        ),
        make_data=made_data.hourly_series,
        edits=(Edit(file="utils/tools.py", old="np.Inf", new="np.inf"),),
        varies=(r"cost time: [\d.]+",),
        num_steps=243,  # 81 in each of three epochs
        num_micro_batches=243,
    ),
    Program(
        name="ppo",
        repository="vwxyzjn/cleanrl",
        checkout="cleanrl",
        directory="cleanrl",
        command=_words("ppo.py --total-timesteps 6144 --no-cuda"),
        varies=(r"SPS: \d+",),
        num_steps=192,  # 6,144 steps in batches of 512, each learnt four times in four parts
        num_micro_batches=192,
    ),
    Program(
        name="lightning",
        repository="Lightning-AI/pytorch-lightning",
        checkout="pl",
        directory="examples/pytorch/basics",
        command=_words(
            "autoencoder.py --trainer.max_epochs=2 --trainer.limit_train_batches=150 --trainer.limit_val_batches=5"
            " --trainer.limit_test_batches=5 --trainer.limit_predict_batches=2 --trainer.enable_progress_bar=false"
        ),
        make_data=made_data.all_digits,
        varies=(r"version_\d+",),
        num_steps=300,
        num_micro_batches=300,
    ),
    Program(
        name="accelerate",
        repository="huggingface/accelerate",
        checkout="acc",
        directory="examples/by_feature",
        command=_words("gradient_accumulation.py --cpu --gradient_accumulation_steps 3"),
        make_data=made_data.paraphrases,
        num_steps=102,  # 100 batches in each of three epochs, an update for three of them
        num_micro_batches=300,
    ),
)
