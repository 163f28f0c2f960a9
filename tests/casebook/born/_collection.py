"""Forty publicly reported NaN and Inf, each in a script of its cause, and thirty harmless ones.

The line that makes the first one ends in `# born`. `first_try` says what was right when each was tried for the first
time, before any rule was written with a look at it: "line, advice" where both were.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Snippet:
    """`told` is a regular expression that advice without an edit fits where it is right."""

    name: str
    source: str
    cause: str
    advice: str
    code: str
    told: str = ""
    first_try: str = "line, advice"


SICK: tuple[Snippet, ...] = (
    Snippet(
        name="where_exp_branch",
        source="https://github.com/pytorch/pytorch/issues/68425",
        cause="exp overflows in the branch torch.where does not select; its backward is 0*inf",
        advice="clamp the input of exp to the selected branch (double where) or use F.elu",
        code="""\
import torch
import torch.nn.functional as F

torch.manual_seed(0)

def my_elu(x):
    neg = torch.exp(x) - 1.0  # born
    return torch.where(x > 0, x, neg)

body = torch.nn.Linear(4, 8)
head = torch.nn.Linear(8, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-3)
for step in range(6):
    x = torch.randn(16, 4)
    if step == 3:
        x[0] = 400.0  # one sample was not scaled
    target = x.sum(1, keepdim=True).clamp(-5, 5)
    loss = F.smooth_l1_loss(head(my_elu(body(x))), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="ratio_then_zeroed",
        source="https://github.com/pytorch/pytorch/issues/4132",
        cause="division by a zero count, result overwritten in place; division's backward is 0*inf",
        advice="make the divisor safe before dividing",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.out = nn.Linear(5, 1)

    def forward(self, clicks, views):
        rate = self.scale * clicks / views  # born
        rate[views == 0] = 0.0
        return self.out(rate)

model = ClickModel()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(5):
    views = torch.randint(5, 20, (8, 5)).float()
    clicks = torch.floor(views * torch.rand(8, 5))
    if step >= 2:
        views[3, 1] = 0.0
        clicks[3, 1] = 0.0
    loss = (model(clicks, views).squeeze(1) - 0.3).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="axis_angle_sqrt_zero",
        source="https://github.com/kornia/kornia/issues/3949",
        cause="gradient of sqrt at 0 for the identity rotation",
        advice="clamp the radicand (or double where) before sqrt",
        code="""\
import torch

torch.manual_seed(0)

def axis_angle_to_quaternion(aa):
    theta_squared = (aa * aa).sum(-1, keepdim=True)
    theta = torch.sqrt(theta_squared)  # born
    w = torch.cos(0.5 * theta)
    xyz = 0.5 * aa * torch.sinc(theta / (2 * torch.pi))
    return torch.cat([w, xyz], dim=-1)

pose = torch.randn(6, 3) * 0.4
pose[4] = 0.0  # this joint rests
pose.requires_grad_()
target = torch.nn.functional.normalize(torch.randn(6, 4), dim=-1)
opt = torch.optim.SGD([pose], lr=0.1)
for step in range(6):
    joint = step % 6
    quat = axis_angle_to_quaternion(pose[joint:joint + 1])
    loss = 1 - (quat * target[joint]).sum(-1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="geodesic_acos_one",
        source="https://github.com/papagina/RotationContinuity/issues/11",
        cause="acos has an infinite slope at cos = 1, clamp(-1, 1) does not help",
        advice="clamp to 1 - eps, or use atan2",
        code="""\
import torch

torch.manual_seed(0)

def rot_z(a):
    c, s, o, i = torch.cos(a), torch.sin(a), torch.zeros_like(a), torch.ones_like(a)
    return torch.stack([c, -s, o, s, c, o, o, o, i]).view(3, 3)

def geodesic(m1, m2):
    trace = torch.diagonal(m1 @ m2.T).sum()
    cos = ((trace - 1) / 2).clamp(-1.0, 1.0)
    theta = torch.acos(cos)  # born
    return theta

angles = torch.nn.Parameter(torch.tensor([0.4, -0.3, 0.9, 0.0, 0.2]))
truth = torch.tensor([0.1, 0.5, -0.2, 0.0, 0.7])
optimizer = torch.optim.SGD([angles], lr=0.05)
for frame in range(5):
    loss = geodesic(rot_z(angles[frame]), rot_z(truth[frame]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="balanced_class_weights",
        source="https://github.com/webis-de/small-text/issues/39",
        cause="balanced class weights divide by the integer count 0 of an absent class",
        advice="clamp the counts to at least 1 (or weight 0 for absent classes)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def balanced_weights(labels, n_classes=3):
    counts = torch.bincount(labels, minlength=n_classes)
    weights = len(labels) / (n_classes * counts)  # born
    return weights / weights.sum()

clf = nn.Linear(6, 3)
optimizer = torch.optim.AdamW(clf.parameters(), lr=1e-2)
for query in range(5):
    labels = torch.arange(18) % 3
    if query == 3:
        labels[labels == 2] = 0  # nobody has labelled class 2 yet
    x = torch.randn(18, 6) + labels[:, None]
    loss = nn.functional.cross_entropy(clf(x), labels, weight=balanced_weights(labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="focal_gamma_half",
        source="https://github.com/kornia/kornia/issues/918",
        cause="pow(1 - p, 0.5) at p = 1 has an infinite slope",
        advice="add eps to / clamp the base of pow",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def binary_focal_loss(logits, target, alpha=0.25, gamma=0.5, eps=1e-8):
    p = torch.sigmoid(logits)
    pos_weight = torch.pow(1.0 - p, gamma)  # born
    neg_weight = torch.pow(p, gamma)
    loss = -alpha * pos_weight * target * torch.log(p + eps)
    loss = loss - (1 - alpha) * neg_weight * (1 - target) * torch.log(1 - p + eps)
    return loss.mean()

net = nn.Linear(3, 1)
nn.init.ones_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(32, 3)
    if step == 4:
        x[5] = 30.0  # very sure now
    y = (x.sum(1, keepdim=True) > 0).float()
    loss = binary_focal_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="gradient_penalty_sqrt",
        source="https://github.com/pytorch/pytorch/issues/2534",
        cause="norm of a zero input-gradient written as sqrt of a sum (double backward)",
        advice="add eps inside sqrt",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(6, 16, bias=False), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(critic.parameters(), lr=1e-3)

def gradient_penalty(x):
    x = x.clone().requires_grad_()
    out = critic(x)
    g, = torch.autograd.grad(out.sum(), x, create_graph=True)
    norm = torch.sqrt((g ** 2).sum(dim=1))  # born
    return ((norm - 1) ** 2).mean()

for step in range(5):
    real = torch.randn(8, 6) + 1
    fake = torch.randn(8, 6)
    if step == 3:
        real[2] = 0.0  # a blank image
    d_loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(real)
    opt.zero_grad()
    d_loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="rmse_exact_fit",
        source="https://github.com/pytorch/pytorch/issues/45112",
        cause="sqrt of an MSE that is exactly 0",
        advice="sqrt(mse + eps)",
        code="""\
import torch
import torch.nn as nn

torch.manual_seed(1)

class RMSELoss(nn.Module):
    def forward(self, pred, y):
        mse = (pred - y).pow(2).mean(dim=1)
        return torch.sqrt(mse).mean()  # born

model = nn.Linear(10, 4, bias=False)
criterion = RMSELoss()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    history = torch.rand(6, 10) * 10
    future = torch.rand(6, 4) * 10
    if epoch >= 1:
        history[0] = 0.0  # a shop that is closed
        future[0] = 0.0
    loss = criterion(model(history), future)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="whitening_eigh_repeated",
        source="https://github.com/pytorch/pytorch/issues/49886",
        cause="gradient of eigenvectors with repeated eigenvalues is 1/(l_i - l_j) = 1/0",
        advice="skip degenerate batches, break ties with jitter, or use Cholesky whitening",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def whiten(z):
    zc = z - z.mean(0)
    cov = zc.T @ zc / (len(z) - 1) + 1e-3 * torch.eye(z.shape[1])
    lam, vec = torch.linalg.eigh(cov)  # born
    w = vec @ torch.diag(lam.rsqrt()) @ vec.T
    return zc @ w

enc = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(enc.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(16, 5)
    if step == 4:
        x = torch.zeros(16, 5)  # all images of this batch are black
    a = whiten(enc(x))
    b = whiten(enc(x + 0.1 * torch.randn(16, 5)))
    loss = (a - b).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="diagonal",
    ),
    Snippet(
        name="attention_row_all_masked",
        source="https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/5",
        cause="softmax over a row that is -inf everywhere",
        advice="use a large negative number, or give empty rows one open position",
        code="""\
import math
import torch
from torch import nn

torch.manual_seed(0)

class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        scores = scores.masked_fill(mask[:, None, :] == 0, float("-inf"))
        attn = torch.softmax(scores, dim=-1)  # born
        return attn @ self.v(x)

net = Attention(8)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(5):
    lengths = torch.tensor([6, 4, 5, 3])
    if step == 3:
        lengths[1] = 0  # an empty sentence
    mask = torch.arange(6)[None, :] < lengths[:, None]
    y = net(torch.randn(4, 6, 8), mask)
    loss = (y * mask[:, :, None]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="large negative",
    ),
    Snippet(
        name="mha_key_padding_all_true",
        source="https://github.com/pytorch/pytorch/issues/40932",
        cause="nn.MultiheadAttention with a key_padding_mask that hides every key of a sample",
        advice="leave at least one key visible (or drop empty samples)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
attn = nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
head = nn.Linear(8, 3)
params = list(attn.parameters()) + list(head.parameters())
optimizer = torch.optim.SGD(params, lr=0.05)
for i in range(4):
    src = torch.randn(3, 5, 8)
    n_tokens = torch.tensor([5, 2, 3 if i < 2 else 0])
    pad = torch.arange(5).expand(3, 5) >= n_tokens.unsqueeze(1)
    out, _ = attn(src, src, src, key_padding_mask=pad)  # born
    logits = head(out[:, 0])
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="large negative|leave rows out",
    ),
    Snippet(
        name="two_additive_masks",
        source="https://github.com/NVIDIA-NeMo/Automodel/pull/2658",
        cause="two additive masks of finfo.min are summed and overflow to -inf over a whole row",
        advice="combine the masks as booleans, or clamp the sum to finfo.min",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
NEG = torch.finfo(torch.float32).min

def build_mask(q_doc, k_doc, k_len, n):
    pad = torch.zeros(1, n).masked_fill(torch.arange(n)[None] >= k_len, NEG)
    doc = torch.zeros(len(q_doc), n).masked_fill(q_doc[:, None] != k_doc[None], NEG)
    return pad + doc  # born

wq, wk = nn.Linear(6, 6), nn.Linear(6, 6)
opt = torch.optim.SGD([*wq.parameters(), *wk.parameters()], lr=0.1)
for step in range(5):
    q, mem = torch.randn(4, 6), torch.randn(5, 6)
    q_doc = torch.tensor([0, 0, 1, 1])
    k_doc = torch.tensor([0, 0, 1, 1, 1])
    k_len = 4
    if step == 2:
        q_doc[3], k_len = 7, 0  # nothing was retrieved for this one
    mask = build_mask(q_doc, k_doc, k_len, 5)
    p = torch.softmax(wq(q) @ wk(mem).T / 6 ** 0.5 + mask, dim=-1)
    loss = (p @ mem - q).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="combine them as booleans",
        first_try="line",
    ),
    Snippet(
        name="hmm_logsumexp_neg_inf",
        source="https://github.com/pytorch/pytorch/issues/31829",
        cause="logsumexp of only -inf (unreachable state) has a NaN gradient",
        advice="use a large finite negative number as log 0",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
LOG0 = float("-inf")

class Chain(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(n, n))
        self.emit = nn.Linear(3, n)
        self.register_buffer("allowed", torch.ones(n, n).triu().bool())

    def forward(self, x, start):
        t = torch.log_softmax(self.trans, 1).masked_fill(~self.allowed, LOG0)
        alpha = torch.zeros(4).masked_fill(~start, LOG0)
        for frame in self.emit(x).log_softmax(-1):
            alpha = torch.logsumexp(alpha[:, None] + t, dim=0) + frame  # born
        return -torch.logsumexp(alpha, dim=0)

model = Chain()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(5):
    start = torch.tensor([step < 3, True, True, True])
    loss = model(torch.randn(6, 3), start)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="large negative",
    ),
    Snippet(
        name="ctc_input_too_short",
        source="https://github.com/ypwhs/captcha_break/issues/29",
        cause="CTC target longer than the input allows",
        advice="longer input (less pooling), filter the sample, zero_infinity=True",
        code="""\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
cnn = nn.Conv1d(8, 16, kernel_size=3, stride=2, padding=1)
fc = nn.Linear(16, 11)
optimizer = torch.optim.Adam([*cnn.parameters(), *fc.parameters()], lr=1e-3)
for step in range(4):
    images = torch.randn(4, 8, 10)
    logits = fc(torch.relu(cnn(images)).permute(2, 0, 1))
    log_probs = logits.log_softmax(2)
    targets = torch.randint(1, 11, (4, 4))
    targets[:, 1] = targets[:, 0] % 10 + 1
    if step == 2:
        targets[0] = 5  # "5555" needs seven frames
    in_len = torch.full((4,), log_probs.size(0), dtype=torch.long)
    loss = F.ctc_loss(log_probs, targets, in_len, torch.full((4,), 4))  # born
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="ce_all_labels_ignored",
        source="https://github.com/pytorch/pytorch/issues/70348",
        cause="cross_entropy mean over zero labels (all are ignore_index)",
        advice="skip such batches, or sum / max(count, 1)",
        code="""\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

def lm_loss(logits, labels):
    logits, labels = logits[:, :-1].reshape(-1, 20), labels[:, 1:].reshape(-1)
    return F.cross_entropy(logits, labels, ignore_index=-100)  # born

for step in range(5):
    ids = torch.randint(0, 20, (2, 12))
    labels = ids.clone()
    labels[:, :4] = -100
    if step == 3:
        labels[:] = -100  # the prompt filled the whole window
    loss = lm_loss(model(ids), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="label",
    ),
    Snippet(
        name="l1_mask_sum_zero",
        source="https://github.com/MhLiao/DB/issues/14",
        cause="masked mean divides by mask.sum() == 0",
        advice="clamp the divisor to at least 1",
        code="""\
import torch
import torch.nn as nn

torch.manual_seed(0)

class MaskL1Loss(nn.Module):
    def forward(self, pred, gt, mask):
        loss = (torch.abs(pred - gt) * mask).sum() / mask.sum()  # born
        return loss

net = nn.Conv2d(1, 1, 3, padding=1)
l1 = MaskL1Loss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for it in range(5):
    img = torch.rand(2, 1, 8, 8)
    gt = torch.rand(2, 1, 8, 8)
    mask = (torch.rand(2, 1, 8, 8) > 0.7).float()
    if it == 1:
        mask.zero_()  # no text in these images
    loss = l1(net(img), gt, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="mean_of_no_positives",
        source="https://github.com/tk1980/TwoWayMultiLabelLoss/issues/2",
        cause="mean of an empty selection (no class has a positive in the batch)",
        advice="return 0 when the selection is empty",
        code="""\
import torch
import torch.nn.functional as F

torch.manual_seed(0)

def two_way_loss(x, y):
    class_mask = (y > 0).any(dim=0)
    pos = torch.logsumexp((-x).masked_fill(y <= 0, -1e4), dim=0)[class_mask]
    neg = torch.logsumexp(x.masked_fill(y > 0, -1e4), dim=0)[class_mask]
    return F.softplus(pos + neg).mean()  # born

lin = torch.nn.Linear(10, 6)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 10)
    y = (torch.rand(8, 6) < 0.3).float()
    if step == 2:
        y = torch.zeros(8, 6)  # only negatives in this batch
    loss = two_way_loss(lin(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="empty batch",
    ),
    Snippet(
        name="ppo_advantage_std_of_one",
        source="https://github.com/DLR-RM/stable-baselines3/issues/325",
        cause="unbiased std of a minibatch of one advantage",
        advice="do not normalise when the minibatch has one element",
        code="""\
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
obs = torch.randn(13, 4)
actions = torch.randint(0, 2, (13,))
returns = torch.randn(13)
with torch.no_grad():
    old_logp = Categorical(logits=policy(obs)).log_prob(actions)
for start in range(0, 13, 4):  # the last minibatch has one row
    sl = slice(start, start + 4)
    adv = returns[sl]
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)  # born
    ratio = (Categorical(logits=policy(obs[sl])).log_prob(actions[sl]) - old_logp[sl]).exp()
    loss = -torch.min(adv * ratio, adv * ratio.clamp(0.8, 1.2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="correction=0",
    ),
    Snippet(
        name="normalize_eps_in_half",
        source="https://github.com/pytorch/pytorch/issues/32137",
        cause="F.normalize's eps 1e-12 is 0 in float16, zero vector gives 0/0",
        advice="pass eps=1e-4 or normalise in float32",
        code="""\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)

class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 8, bias=False)

    def forward(self, x):
        h = torch.relu(self.fc(x))
        return F.normalize(h.half(), dim=1)  # born

net = Projector()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 6)
    if step == 4:
        x[7] = 0.0  # padding item
    z = net(x).float()
    sim = z @ z.T / 0.5
    loss = F.cross_entropy(sim, torch.arange(8).roll(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="adam_eps_in_half",
        source="https://github.com/afiaka87/glide-finetune/issues/5",
        cause="Adam on float16 parameters: eps=1e-8 is 0 in half, 0/0 for zero gradients",
        advice="keep float32 master weights, or eps=1e-4",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)).half()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    tokens = torch.randint(0, 10, (16,))
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.float(), (tokens + 1) % 30)
    opt.zero_grad()
    loss.backward()
    opt.step()  # born
""",
        told="eps=0\\.0001",
    ),
    Snippet(
        name="attention_qk_overflow_half",
        source="https://github.com/pytorch/pytorch/issues/60939",
        cause="q @ k.T overflows float16 before the scale is applied",
        advice="scale q before the matmul (or scores in float32)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class HalfAttention(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.to_q = nn.Linear(d, d, bias=False)
        self.to_k = nn.Linear(d, d, bias=False)
        self.scale = d ** -0.5

    def forward(self, x):
        q, k = self.to_q(x), self.to_k(x)
        scores = (q @ k.transpose(-2, -1)) * self.scale  # born
        return scores.softmax(dim=-1) @ x

model = HalfAttention()
nn.init.eye_(model.to_q.weight)
nn.init.eye_(model.to_k.weight)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(5):
    x = torch.randn(2, 6, 64)
    if step == 3:
        x[0, 0] *= 60.0  # an outlier token
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).float().abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="bfloat16",
    ),
    Snippet(
        name="t5_ff_overflow_half",
        source="https://github.com/huggingface/transformers/issues/5651",
        cause="feed-forward output above 65504 in float16",
        advice="run wo in float32, use bfloat16, or clamp",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class DenseReluDense(nn.Module):
    def __init__(self, d=16, ff=64):
        super().__init__()
        self.wi = nn.Linear(d, ff, bias=False)
        self.wo = nn.Linear(ff, d, bias=False)

    def forward(self, x):
        h = torch.relu(self.wi(x))
        h = self.wo(h)  # born
        return x + h

block, norm = DenseReluDense(), nn.LayerNorm(16)
with torch.no_grad():
    block.wo.weight.mul_(100)
opt = torch.optim.SGD([*block.parameters(), *norm.parameters()], lr=1e-3)
for step in range(5):
    x = torch.randn(4, 16) * (2000.0 if step == 3 else 1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        y = block(x)
    loss = (norm(y.float()) - 0.5).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="bfloat16",
    ),
    Snippet(
        name="batchnorm_stats_amp_overflow",
        source="https://github.com/pytorch/pytorch/issues/88474",
        cause="an autocast layer overflows once; the skipped step still poisons BatchNorm running stats",
        advice="clip the input / keep the layer in float32",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
fc, bn, out = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
params = [*fc.parameters(), *bn.parameters(), *out.parameters()]
optimizer = torch.optim.SGD(params, lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for step in range(8):
    x = torch.randn(32, 8)
    if step == 2:
        x[0, 0] = 6.0e5  # broken sensor
    if step == 5:
        bn.eval()  # freeze the statistics
    with torch.autocast("cpu", dtype=torch.float16):
        h = fc(x)  # born
        h = torch.relu(bn(h.float()))
        pred = out(h)
    loss = nn.functional.mse_loss(pred.float(), x.sum(1, keepdim=True).clamp(-9, 9))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        told="float32",
    ),
    Snippet(
        name="vgae_logstd_overflow",
        source="https://github.com/pyg-team/pytorch_geometric/issues/500",
        cause="exp of an unbounded log-std in the reparametrisation",
        advice="clamp logstd (max 10)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class VGAEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.logstd = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x, adj):
        x = adj @ x
        mu, logstd = self.mu(x), self.logstd(x)
        std = torch.exp(logstd)  # born
        kl = -0.5 * (1 + 2 * logstd - mu ** 2 - std ** 2).sum(1).mean()
        return mu + std * torch.randn_like(std), kl

enc = VGAEncoder()
optimizer = torch.optim.Adam(enc.parameters(), lr=0.01)
adj = torch.eye(10) * 0.5 + 0.05
for epoch in range(6):
    x = torch.randn(10, 6)
    if epoch == 4:
        x[0] = torch.tensor([900.0, -700.0, 800.0, 950.0, -900.0, 600.0])  # raw counts
    z, kl = enc(x, adj)
    recon = nn.functional.binary_cross_entropy_with_logits(z @ z.T, (adj > 0.1).float())
    loss = recon + 0.1 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        first_try="line",
    ),
    Snippet(
        name="sac_scaled_action_log",
        source="https://github.com/philtabor/Actor-Critic-Methods-Paper-To-Code/issues/7",
        cause="log(1 - action^2) with the action already scaled beyond 1",
        advice="use tanh(u) before scaling in the correction",
        code="""\
import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
MAX_ACTION = 2.0
mu_net = nn.Linear(3, 1)
opt = torch.optim.Adam(mu_net.parameters(), lr=3e-3)

def sample(state):
    dist = Normal(mu_net(state), 0.3)
    u = dist.rsample()
    action = torch.tanh(u) * MAX_ACTION
    log_probs = dist.log_prob(u)
    log_probs = log_probs - torch.log(1 - action.pow(2) + 1e-6)  # born
    return action, log_probs.sum(1)

for step in range(4):
    action, logp = sample(torch.randn(64, 3))
    q = -(action - 1.0).pow(2).squeeze(1)
    loss = (0.2 * logp - q).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="msle_prediction_below_minus_one",
        source="https://github.com/timeseriesAI/tsai/issues/150",
        cause="log(1 + pred) of a prediction below -1",
        advice="make predictions non-negative (softplus, clamp) or fit log targets",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class MSLELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, pred, target):
        return self.mse(torch.log1p(pred), torch.log1p(target))  # born

model = nn.Linear(2, 1)
nn.init.constant_(model.weight, 0.5)
nn.init.constant_(model.bias, 2.0)
criterion = MSLELoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.rand(16, 2)
    y = 10 ** (3 * torch.rand(16, 1) - 2)
    if step == 4:
        x[3] = -20.0
    loss = criterion(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="log1p",
    ),
    Snippet(
        name="entropy_of_masked_logits",
        source="https://github.com/huggingface/trl/issues/7221",
        cause="entropy written as p * log p with log p = -inf for forbidden tokens",
        advice="replace -inf log-probabilities by 0 before the product",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Linear(5, 6)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

def policy_loss(logits, legal, action, adv):
    logits = logits.masked_fill(~legal, float("-inf"))
    logp = torch.log_softmax(logits, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)  # born
    chosen = logp.gather(1, action[:, None]).squeeze(1)
    return -(adv * chosen).mean() - 0.01 * entropy.mean()

for step in range(5):
    legal = torch.ones(8, 6, dtype=torch.bool)
    if step >= 3:
        legal[:, 5] = False
    action = torch.randint(0, 5, (8,))
    loss = policy_loss(policy(torch.randn(8, 5)), legal, action, torch.randn(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="xlogy",
        first_try="line",
    ),
    Snippet(
        name="gan_log_one_minus_sigmoid",
        source="https://github.com/POSTECH-CVLab/PyTorch-StudioGAN/issues/67",
        cause="log(1 - sigmoid(x)) by hand with a saturated discriminator",
        advice="BCEWithLogitsLoss / logsigmoid(-x)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
disc = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt = torch.optim.RMSprop(disc.parameters(), lr=1e-3)

def dis_loss(real_logit, fake_logit):
    d_real, d_fake = torch.sigmoid(real_logit), torch.sigmoid(fake_logit)
    loss_real = -torch.log(d_real + 1e-8).mean()
    loss_fake = -torch.log(1.0 - d_fake).mean()  # born
    return loss_real + loss_fake

for step in range(6):
    real, fake = torch.randn(8, 4) + 2, torch.randn(8, 4) + 2
    if step == 5:
        fake = fake * 200.0  # the generator diverged
    loss = dis_loss(disc(real), disc(fake))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="sisdr_silent_target",
        source="https://github.com/csteinmetz1/auraloss/issues/25",
        cause="projection on a silent target: 0/0",
        advice="add eps to the energy (or skip silent targets)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def si_sdr_loss(est, ref, eps=1e-8):
    est = est - est.mean(-1, keepdim=True)
    ref = ref - ref.mean(-1, keepdim=True)
    alpha = (est * ref).sum(-1, keepdim=True) / (ref ** 2).sum(-1, keepdim=True)  # born
    proj = alpha * ref
    noise = est - proj
    ratio = (proj ** 2).sum(-1) / ((noise ** 2).sum(-1) + eps)
    return -10 * torch.log10(ratio + eps).mean()

net = nn.Conv1d(1, 1, 9, padding=4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(5):
    clean = torch.randn(3, 1, 200)
    if step == 2:
        clean[1] = 0.0  # silence
    noisy = clean + 0.3 * torch.randn(3, 1, 200)
    loss = si_sdr_loss(net(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    Snippet(
        name="nan_target_masked_late",
        source="https://github.com/pytorch/pytorch/issues/121416",
        cause="NaN targets enter the loss and are masked out only afterwards",
        advice="mask prediction and target before the loss",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 3)
loss_fn = nn.MSELoss(reduction="none")
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x = torch.randn(10, 6)
    y = torch.randn(10, 3)
    if step == 2:
        y[4, 1] = float("nan")  # missing label
    observed = ~torch.isnan(y)
    errors = loss_fn(model(x), y)  # born
    loss = errors[observed].mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="torch\\.where\\(mask",
        first_try="line",
    ),
    Snippet(
        name="uninitialised_embedding",
        source="https://github.com/sauradip/STALE/issues/16",
        cause="parameter made with torch.empty and never initialised",
        advice="initialise it",
        code="""\
import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 16)
        self.classes = nn.Parameter(torch.randn(3, 16) * 0.02)
        self.bg_embedding = nn.Parameter(torch.empty(1, 16))  # born

    def forward(self, x):
        text = torch.cat([self.classes, self.bg_embedding])
        return self.proj(x) @ text.T

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    logits = model(torch.randn(8, 8))
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="torch\\.empty",
        first_try="nothing",
    ),
    Snippet(
        name="weight_norm_zero_row",
        source="https://github.com/pytorch/pytorch/issues/19126",
        cause="weight_norm of a direction vector that is zero: g * v / 0",
        advice="zero g, not v (or add eps to the norm)",
        code="""\
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = weight_norm(nn.Linear(5, 8))
        self.fc2 = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.fc1(x))  # born
        return self.fc2(h)

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    if step == 3:  # prune one neuron
        with torch.no_grad():
            net.fc1.parametrizations.weight.original1[2].zero_()
    x = torch.randn(16, 5)
    loss = (net(x) - x[:, :1]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        told="weight_norm",
        first_try="line",
    ),
    Snippet(
        name="mdn_likelihood_underflow",
        source="https://github.com/sagelywizard/pytorch-mdn/issues/6",
        cause="mixture density underflows to 0, log gives -inf",
        advice="logsumexp of log-probabilities",
        code="""\
import math
import torch
from torch import nn

torch.manual_seed(0)

class MDN(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.pi, self.mu, self.sigma = nn.Linear(2, k), nn.Linear(2, k), nn.Linear(2, k)

    def forward(self, x):
        return self.pi(x).softmax(1), self.mu(x), torch.exp(self.sigma(x))

def mdn_loss(pi, mu, sigma, y):
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    prob = (pi * density).sum(1)
    return -torch.log(prob).mean()  # born

model = MDN()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(20, 2)
    y = x.sum(1, keepdim=True) * 0.3
    if step == 4:
        y[0] = 80.0  # outlier
    loss = mdn_loss(*model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="negbin_lgamma_zero",
        source="https://github.com/OmicsML/dance/issues/166",
        cause="lgamma at total count 0 in a negative binomial",
        advice="keep the count parameter above a small positive number",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def nb_log_prob(y, mu, theta):
    comb = torch.lgamma(y + theta) - torch.lgamma(theta) - torch.lgamma(y + 1)  # born
    log_tm = torch.log(theta + mu + 1e-8)
    return comb + theta * (torch.log(theta + 1e-8) - log_tm) + y * (torch.log(mu) - log_tm)

mean_net = nn.Linear(4, 3)
raw_theta = nn.Parameter(torch.tensor([2.0, 1.0, 0.4]))
optimizer = torch.optim.SGD([*mean_net.parameters(), raw_theta], lr=0.1)
for step in range(8):
    x = torch.randn(16, 4)
    counts = torch.poisson(torch.rand(16, 3) * 4)
    counts[::2, 2] = 40.0  # a bursty gene
    mu = nn.functional.softplus(mean_net(x)) + 0.1
    theta = torch.relu(raw_theta)
    loss = -nb_log_prob(counts, mu, theta).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="lgamma",
    ),
    Snippet(
        name="mish_in_checkpoint",
        source="https://github.com/tracel-ai/burn/issues/5373",
        cause="softplus written log(1 + exp(x)) overflows (inside a checkpointed block)",
        advice="F.softplus / F.mish",
        code="""\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)

def mish(x):
    sp = torch.log(1 + torch.exp(x))  # born
    return x * torch.tanh(sp)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.fc2(mish(self.fc1(x)))

blocks = nn.ModuleList(Block() for _ in range(2))
opt = torch.optim.SGD(blocks.parameters(), lr=1e-3)
for step in range(5):
    h = torch.randn(8, 6) * (1000.0 if step == 3 else 1.0)
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=False)
    loss = h.abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        first_try="line",
    ),
    Snippet(
        name="relu_rnn_explodes",
        source="https://github.com/chenxie95/deeplearning_course_sjtu/issues/31",
        cause="ReLU recurrence grows without bound after a huge update",
        advice="clip the gradient norm (smaller lr, tanh)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class ReluRNN(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.wx, self.wh = nn.Linear(2, hidden), nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)
        self.wh.weight.data = 0.9 * torch.eye(hidden)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 8)
        for t in range(x.size(1)):
            h = torch.relu(self.wx(x[:, t]) + self.wh(h))  # born
        return self.out(h)

model = ReluRNN()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(7):
    x = torch.randn(4, 50, 2)
    if step == 3:
        x = x * 300.0  # a loud sequence
    loss = (model(x) - x.sum((1, 2)).clamp(-5, 5)[:, None]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="grow|[Cc]lip",
    ),
    Snippet(
        name="surrogate_backward_inf_over_inf",
        source="https://github.com/jeshraghian/snntorch/issues/427",
        cause="custom autograd.Function backward computes inf / inf",
        advice="write the slope with torch.sigmoid",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        e = torch.exp(-25.0 * u)  # born
        return grad * 25.0 * e / (e + 1.0) ** 2

fc1, fc2 = nn.Linear(6, 10), nn.Linear(10, 2)
opt = torch.optim.Adam([*fc1.parameters(), *fc2.parameters()], lr=1e-3)
for step in range(5):
    x = torch.rand(12, 6) * (20.0 if step == 2 else 0.5)
    mem = fc1(x) - 0.2
    loss = nn.functional.cross_entropy(fc2(Spike.apply(mem)), torch.arange(12) % 2)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        first_try="line",
    ),
    Snippet(
        name="ciou_zero_height",
        source="https://github.com/Zzh-tju/DIoU-pytorch-detectron/issues/19",
        cause="w / h of a box of zero height; atan hides the inf, backward is 0*inf",
        advice="add eps to the height",
        code="""\
import math
import torch
from torch import nn

torch.manual_seed(0)

def ciou_loss(wh, wh_gt):
    inter = torch.min(wh, wh_gt).prod(1)
    iou = inter / (wh.prod(1) + wh_gt.prod(1) - inter)
    w, h = wh.unbind(1)
    arctan = torch.atan(wh_gt[:, 0] / wh_gt[:, 1]) - torch.atan(w / h)  # born
    v = 4 / math.pi ** 2 * arctan ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return (1 - iou + alpha * v).mean()

head = nn.Linear(8, 2)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(5):
    rois = torch.rand(6, 2) * 40 + 10
    if step == 3:
        rois[2, 1] = 0.0  # y1 == y2
    gt = torch.rand(6, 2) * 40 + 10
    pred = rois * torch.exp(0.1 * head(torch.randn(6, 8)))
    loss = ciou_loss(pred, gt)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        told="denominator",
    ),
    Snippet(
        name="gcn_negative_degree",
        source="https://github.com/pyg-team/pytorch_geometric/issues/61",
        cause="deg ** -0.5 of a negative weighted degree",
        advice="non-negative edge weights (or clamp the degree)",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
row = torch.tensor([0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 2, 3])
col = torch.tensor([1, 0, 2, 1, 3, 2, 0, 3, 0, 1, 2, 3])

def gcn_norm(edge_weight, n=4):
    deg = torch.zeros(n).scatter_add(0, row, edge_weight)
    deg_inv_sqrt = deg.pow(-0.5)  # born
    deg_inv_sqrt = deg_inv_sqrt.masked_fill(deg_inv_sqrt == float("inf"), 0.0)
    return deg_inv_sqrt[row] * edge_weight * deg_inv_sqrt[col]

lin = nn.Linear(3, 2)
gate = nn.Parameter(torch.tensor(1.0))
opt = torch.optim.Adam([*lin.parameters(), gate], lr=0.01)
x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
for step in range(5):
    edge_attr = torch.rand(12) + 0.1
    if step == 3:
        edge_attr = torch.randn(12)  # signed features
    norm = gcn_norm(edge_attr * gate)
    out = torch.zeros(4, 2).index_add(0, row, norm[:, None] * lin(x)[col])
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="sinkhorn_exp_overflow",
        source="https://github.com/facebookresearch/swav/issues/67",
        cause="exp(scores / 0.05) of features that were not L2-normalised",
        advice="L2-normalise the features or subtract the maximum",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

@torch.no_grad()
def sinkhorn(scores, epsilon=0.05, iters=3):
    q = torch.exp(scores / epsilon).t()  # born
    q /= q.sum()
    k, b = q.shape
    for _ in range(iters):
        q /= q.sum(dim=1, keepdim=True) * k
        q /= q.sum(dim=0, keepdim=True) * b
    return (q * b).t()

backbone = nn.Linear(10, 8)
prototypes = nn.Linear(8, 5, bias=False)
optimizer = torch.optim.SGD([*backbone.parameters(), *prototypes.parameters()], lr=0.05)
for step in range(5):
    x = torch.randn(12, 10) * (30.0 if step == 3 else 1.0)
    s1 = prototypes(backbone(x))
    s2 = prototypes(backbone(x + 0.1 * torch.randn_like(x)))
    code = sinkhorn(s1.detach())
    loss = -(code * torch.log_softmax(s2 / 0.1, dim=1)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        first_try="line",
    ),
)

HARMLESS: tuple[Snippet, ...] = (
    Snippet(
        name="causal_mask_neg_inf",
        source="",
        cause="usual -inf causal mask",
        advice="",
        code="""\
import math
import torch
from torch import nn

torch.manual_seed(0)
qkv, out = nn.Linear(8, 24), nn.Linear(8, 8)
opt = torch.optim.AdamW([*qkv.parameters(), *out.parameters()], lr=1e-3)
mask = torch.full((6, 6), float("-inf")).triu(1)
for step in range(6):
    x = torch.randn(2, 6, 8)
    q, k, v = qkv(x).chunk(3, dim=-1)
    att = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8) + mask, dim=-1)
    loss = (out(att @ v) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="sdpa_bool_and_causal",
        source="",
        cause="SDPA with a boolean mask and with is_causal",
        advice="",
        code="""\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
lin = nn.Linear(8, 8)
opt = torch.optim.SGD(lin.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(2, 2, 5, 8)
    keep = torch.arange(5)[None, None, None] < torch.tensor([5, 3]).view(2, 1, 1, 1)
    a = F.scaled_dot_product_attention(lin(x), lin(x), x, attn_mask=keep.expand(2, 1, 5, 5))
    b = F.scaled_dot_product_attention(lin(x), x, lin(x), is_causal=True)
    loss = (a - b).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="sdpa_row_fully_masked",
        source="",
        cause="SDPA gives zeros for a fully masked row",
        advice="",
        code="""\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
q_proj, k_proj = nn.Linear(8, 8), nn.Linear(8, 8)
opt = torch.optim.Adam([*q_proj.parameters(), *k_proj.parameters()], lr=1e-3)
for step in range(5):
    x = torch.randn(2, 1, 4, 8)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    mask[1, :, 2] = False
    y = F.scaled_dot_product_attention(q_proj(x), k_proj(x), x, attn_mask=mask)
    loss = y.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="teacher_masked_rows_zeroed",
        source="",
        cause="NaN rows of a teacher under no_grad are zeroed before use",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(6, 4)
    pad = torch.zeros(6, 4, dtype=torch.bool)
    pad[5] = True
    with torch.no_grad():
        soft = teacher(x).masked_fill(pad, float("-inf")).softmax(-1)
        soft[pad.all(-1)] = 0.0
    loss = -(soft * student(x).log_softmax(-1)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="double_where_log",
        source="",
        cause="torch.where with a safe argument in the other branch",
        advice="",
        code="""\
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(5))
opt = torch.optim.SGD([w], lr=0.05)

def safe_log(x):
    ok = x > 0
    return torch.where(ok, torch.log(torch.where(ok, x, torch.ones_like(x))), x)

for step in range(6):
    x = torch.randn(10, 5)
    x[0] = 0.0
    with torch.no_grad():
        print("naive log of the inputs:", torch.log(x).mean().item())
    loss = (safe_log(x @ w) - 0.1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="nan_to_num_features",
        source="",
        cause="NaN features are imputed before the model",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(40, 6)
data[torch.rand(40, 6) < 0.1] = float("nan")
target = torch.nansum(data, dim=1, keepdim=True)
mean = torch.nanmean(data, dim=0)
net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(8):
    idx = torch.randint(0, 40, (10,))
    x = data[idx]
    missing = torch.isnan(x)
    x = torch.cat([torch.where(missing, mean, x), missing.float()], dim=1)
    loss = nn.functional.mse_loss(net(x), target[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="slopes_at_zero",
        source="",
        cause="norm, abs and relu have slope 0 at 0 in PyTorch",
        advice="",
        code="""\
import torch

torch.manual_seed(0)
delta = torch.nn.Parameter(torch.zeros(4, 3))
scale = torch.nn.Parameter(torch.ones(3))
opt = torch.optim.SGD([delta, scale], lr=0.1)
for step in range(5):
    x = torch.randn(4, 3)
    fit = (x * scale + delta - 2 * x).pow(2).mean()
    reg = delta.norm() + delta.norm(dim=1).sum() + delta.abs().sum() + torch.relu(delta).sum()
    loss = fit + 0.01 * reg
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="cdist_diagonal",
        source="",
        cause="cdist's slope at distance 0 is 0; inf on the diagonal for the minimum",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
enc = nn.Linear(5, 3)
opt = torch.optim.Adam(enc.parameters(), lr=0.01)
for step in range(5):
    z = enc(torch.randn(8, 5))
    d = torch.cdist(z, z)
    nearest = d.masked_fill(torch.eye(8, dtype=torch.bool), float("inf")).min(dim=1).values
    loss = torch.relu(1 - nearest).mean() + 0.01 * d.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="nan_labels_dropped_first",
        source="",
        cause="samples with NaN labels are dropped by indexing before the loss",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x, y = torch.randn(12, 6), torch.randn(12, 1)
    y[torch.rand(12, 1) < 0.2] = float("nan")
    keep = ~torch.isnan(y).squeeze(1)
    loss = nn.functional.l1_loss(model(x[keep]), y[keep])
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="metric_nan_not_in_loss",
        source="",
        cause="precision and correlation are NaN, only printed",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
clf = nn.Linear(4, 1)
nn.init.constant_(clf.bias, -8.0)
opt = torch.optim.Adam(clf.parameters(), lr=0.1)
for epoch in range(6):
    x = torch.randn(20, 4)
    y = (x[:, 0] > 0).float()
    logits = clf(x).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    hard = (logits.detach() > 0).float()
    precision = (hard * y).sum() / hard.sum()
    corr = torch.corrcoef(torch.stack([hard, y]))[0, 1]
    print(epoch, loss.item(), precision.item(), corr.item())
""",
    ),
    Snippet(
        name="gradscaler_first_steps_skipped",
        source="",
        cause="the scale starts too high; first steps are skipped",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, backoff_factor=1 / 64)
for step in range(8):
    x = torch.randn(32, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(x)
        loss = nn.functional.mse_loss(pred.float(), x.sum(1, keepdim=True))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    ),
    Snippet(
        name="lora_zero_init",
        source="",
        cause="LoRA B is zero: A gets zero gradients, cosine with zero logged as NaN",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class LoRALinear(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T

layer = LoRALinear(nn.Linear(6, 4))
opt = torch.optim.AdamW([layer.A, layer.B], lr=1e-2)
for step in range(5):
    x = torch.randn(8, 6)
    loss = (layer(x) - x[:, :4]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    print(step, (layer.A.grad / layer.A.grad.norm()).mean().item())
    opt.step()
""",
    ),
    Snippet(
        name="early_stopping_best_inf",
        source="",
        cause="best_loss starts at inf",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
best_loss, patience = torch.tensor(float("inf")), 0
history = torch.full((10,), float("nan"))
for epoch in range(10):
    x = torch.randn(16, 3)
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history[epoch] = loss.detach()
    improvement = (best_loss - loss.detach()) / best_loss
    print(epoch, history.nanmean().item(), improvement.item())
    best_loss = torch.minimum(best_loss, loss.detach())
""",
    ),
    Snippet(
        name="clip_with_inf_max",
        source="",
        cause="clip_grad_norm_ with max_norm=inf only measures",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
gru, head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)
params = [*gru.parameters(), *head.parameters()]
opt = torch.optim.Adam(params, lr=1e-3)
for step in range(5):
    x = torch.randn(4, 7, 4)
    out, _ = gru(x)
    loss = (head(out[:, -1]) - x.mean((1, 2))[:, None]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(params, max_norm=float("inf"))
    opt.step()
""",
    ),
    Snippet(
        name="logsumexp_some_neg_inf",
        source="",
        cause="logsumexp where every row keeps one finite entry",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
trans = nn.Parameter(torch.randn(4, 4))
emit = nn.Linear(3, 4)
opt = torch.optim.Adam([trans, *emit.parameters()], lr=0.05)
allowed = torch.eye(4, dtype=torch.bool) | torch.eye(4, dtype=torch.bool).roll(1, 1)
for step in range(6):
    alpha = torch.zeros(4)
    t = trans.masked_fill(~allowed, float("-inf"))
    for e in emit(torch.randn(5, 3)).log_softmax(-1):
        alpha = torch.logsumexp(alpha[:, None] + t.log_softmax(1), dim=0) + e
    loss = -torch.logsumexp(alpha, dim=0)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="empty_batch_skipped",
        source="",
        cause="mean of an empty batch is NaN; the batch is skipped",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    x = torch.randn(10, 4)
    x = x[x[:, 0] > (9.0 if step % 3 == 1 else 0.0)]
    print("mean of the batch", x.mean().item())
    if x.numel() == 0:
        continue
    loss = nn.functional.cross_entropy(model(x), (x[:, 1] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="replay_buffer_empty",
        source="",
        cause="torch.empty buffers (filled with NaN here) are written before they are read",
        advice="",
        code="""\
import torch
from torch import nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)

class ReplayBuffer:
    def __init__(self, size):
        self.obs, self.ret, self.n = torch.empty(size, 3), torch.empty(size, 1), 0

    def add(self, obs, ret):
        m = len(obs)
        self.obs[self.n:self.n + m], self.ret[self.n:self.n + m] = obs, ret
        self.n += m

    def sample(self, k):
        i = torch.randint(0, self.n, (k,))
        return self.obs[i], self.ret[i]

buf, value = ReplayBuffer(1000), nn.Linear(3, 1)
opt = torch.optim.Adam(value.parameters(), lr=1e-2)
for step in range(6):
    o = torch.randn(8, 3)
    buf.add(o, o.sum(1, keepdim=True))
    obs, ret = buf.sample(16)
    loss = (value(obs) - ret).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="empty_validation_set",
        source="",
        cause="validation loss is NaN, training is not",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.no_grad()
def evaluate(x, y):
    model.eval()
    loss = nn.functional.cross_entropy(model(x), y)
    model.train()
    return loss.item()

for epoch in range(4):
    x, y = torch.randn(16, 5), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(epoch, evaluate(torch.empty(0, 5), torch.empty(0, dtype=torch.long)))
""",
    ),
    Snippet(
        name="illegal_actions_neg_inf",
        source="",
        cause="-inf logits of illegal actions; the target is always legal",
        advice="",
        code="""\
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Linear(4, 5)
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
for step in range(6):
    obs = torch.randn(8, 4)
    legal = torch.rand(8, 5) < 0.7
    legal[:, 0] = True
    logits = policy(obs).masked_fill(~legal, float("-inf"))
    dist = Categorical(logits=logits)
    action = dist.sample()
    loss = -(dist.log_prob(action) * torch.randn(8)).mean() - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="top_k_sampling",
        source="",
        cause="generation during training fills logits with -inf",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
lm = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
opt = torch.optim.AdamW(lm.parameters(), lr=1e-2)

@torch.no_grad()
def generate(tok, n=4, k=3):
    for _ in range(n):
        logits = lm(tok)
        kth = logits.topk(k).values[:, -1:]
        logits[logits < kth] = float("-inf")
        tok = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
    return tok

for step in range(5):
    tok = torch.randint(0, 12, (16,))
    loss = nn.functional.cross_entropy(lm(tok), (tok + 1) % 12)
    opt.zero_grad()
    loss.backward()
    opt.step()
    generate(tok[:2])
""",
    ),
    Snippet(
        name="masked_max_pooling",
        source="",
        cause="max pooling over time with -inf on padding",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
conv, fc = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(8, 2)
opt = torch.optim.SGD([*conv.parameters(), *fc.parameters()], lr=0.05)
for step in range(5):
    lengths = torch.tensor([7, 3, 5, 1])
    pad = torch.arange(7)[None, :] >= lengths[:, None]
    h = conv(torch.randn(4, 4, 7)).masked_fill(pad[:, None], -torch.inf)
    pooled = h.amax(dim=2)
    loss = nn.functional.cross_entropy(fc(pooled), torch.tensor([0, 1, 0, 1]))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="target_entropy_xlogy",
        source="",
        cause="soft targets with zeros: log gives -inf, xlogy and kl_div handle it",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 4)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(5):
    p = torch.eye(4)[torch.randint(0, 4, (8,))]
    p[0] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    print("log of the targets", p.log().min().item(), torch.xlogy(p, p).sum().item())
    loss = nn.functional.kl_div(net(torch.randn(8, 5)).log_softmax(-1), p, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="observer_min_max_inf",
        source="",
        cause="quantisation observer starts at +inf and -inf",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class MinMaxObserver(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))

    def forward(self, x):
        self.lo = torch.minimum(self.lo, x.detach().min())
        self.hi = torch.maximum(self.hi, x.detach().max())
        scale = (self.hi - self.lo) / 255
        return x + (torch.round(x / scale) * scale - x).detach()

model = nn.Sequential(nn.Linear(4, 6), MinMaxObserver(), nn.ReLU(), nn.Linear(6, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x = torch.randn(8, 4)
    loss = (model(x) - x[:, :1]).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="class_weights_inf_replaced",
        source="",
        cause="1 / count is inf for an absent class and set to 0 before use",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
labels = torch.randint(0, 3, (60,))
counts = torch.bincount(labels, minlength=4).float()
weights = counts.sum() / counts
weights[torch.isinf(weights)] = 0.0
model = nn.Linear(5, 4)
criterion = nn.CrossEntropyLoss(weight=weights)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    idx = torch.randint(0, 60, (12,))
    loss = criterion(model(torch.randn(12, 5)), labels[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="ntxent_diagonal_neg_inf",
        source="",
        cause="self-similarity is set to -inf in a contrastive loss",
        advice="",
        code="""\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
enc = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
opt = torch.optim.Adam(enc.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(5, 6)
    z = F.normalize(enc(torch.cat([x, x + 0.1 * torch.randn(5, 6)])), dim=1)
    sim = (z @ z.T / 0.2).fill_diagonal_(float("-inf"))
    loss = F.cross_entropy(sim, torch.arange(10).roll(5))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="graph_attention_adjacency",
        source="",
        cause="attention limited to neighbours by -inf, self loops kept",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

class GATLayer(nn.Module):
    def __init__(self, d, o):
        super().__init__()
        self.w, self.a, self.b = nn.Linear(d, o), nn.Linear(o, 1), nn.Linear(o, 1)

    def forward(self, x, adj):
        h = self.w(x)
        e = nn.functional.leaky_relu(self.a(h) + self.b(h).T)
        e = torch.where(adj, e, torch.tensor(float("-inf")))
        return torch.softmax(e, dim=1) @ h

adj = (torch.rand(7, 7) < 0.3) | torch.eye(7, dtype=torch.bool)
model = GATLayer(4, 3)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = torch.randn(7, 4), torch.randint(0, 3, (7,))
for epoch in range(6):
    loss = nn.functional.cross_entropy(model(x, adj), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="inverse_depth_where_data",
        source="",
        cause="1 / 0 on data without gradient, dropped by where",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Conv2d(1, 1, 3, padding=1)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(5):
    depth = torch.rand(2, 1, 6, 6) * 10 * (torch.rand(2, 1, 6, 6) > 0.3)
    disparity = torch.where(depth > 0, 1 / depth, torch.zeros(()))
    valid = depth > 0.1
    loss = (net(depth) - disparity).abs()[valid].mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="dtw_table_inf",
        source="",
        cause="dynamic time warping table with inf borders; paths stay finite",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)

def dtw(cost):
    n, m = cost.shape
    inf = torch.tensor(float("inf"))
    prev = [torch.tensor(0.0)] + [inf] * m
    for i in range(n):
        row = [inf]
        for j in range(m):
            row.append(cost[i, j] + torch.stack([prev[j], prev[j + 1], row[j]]).min())
        prev = row
    return prev[m]

warp = nn.Linear(2, 2)
opt = torch.optim.SGD(warp.parameters(), lr=0.05)
for step in range(4):
    a, b = torch.randn(4, 2), torch.randn(5, 2)
    loss = dtw((warp(a)[:, None] - b[None]).pow(2).sum(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="beam_scores_neg_inf",
        source="",
        cause="expected risk over hypotheses: a -inf score is padded and has weight 0",
        advice="",
        code="""\
import torch
from torch import nn

torch.manual_seed(0)
scorer = nn.Linear(6, 1)
opt = torch.optim.SGD(scorer.parameters(), lr=0.1)
for step in range(5):
    hyps = torch.randn(3, 4, 6)
    exists = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    scores = torch.full((3, 4), -torch.inf)
    scores[exists] = scorer(hyps[exists]).squeeze(1)
    weight = scores.softmax(dim=1)
    errors = torch.rand(3, 4).masked_fill(~exists, 0.0)
    loss = (weight * errors).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    Snippet(
        name="ignored_labels_guarded",
        source="",
        cause="all labels ignored: sum / max(count, 1), plain mean only logged",
        advice="",
        code="""\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(15, 8), nn.Linear(8, 15))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    ids = torch.randint(0, 15, (20,))
    labels = ids.roll(-1)
    labels[:10] = -100
    if step % 2:
        labels[:] = -100
    logits = model(ids)
    n = (labels != -100).sum()
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / n.clamp(min=1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, F.cross_entropy(logits.detach(), labels).item())
""",
    ),
)
