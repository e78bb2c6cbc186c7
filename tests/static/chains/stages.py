import torch
from torch import nn


def forward(state):
    state["optimizer"].zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        state["loss"] = nn.functional.mse_loss(state["model"](state["x"]), state["y"])


def backward(state):
    state["scaler"].scale(state["loss"]).backward()


def clip(state):
    # mend: state["scaler"].unscale_(state["optimizer"])
    nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0)  # AMP202


def update(state):
    state["scaler"].step(state["optimizer"])
    state["scaler"].update()


def train(model, loader, optimizer):
    state = {"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cuda")}
    for x, y in loader:
        state["x"], state["y"] = x, y
        for stage in (forward, backward, clip, update):
            stage(state)
