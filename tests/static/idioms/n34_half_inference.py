import time

import torch
from torch import nn


def attempt_load(weights, device):
    ckpt = torch.load(weights, map_location=device, weights_only=False)
    return (ckpt.get("ema") or ckpt["model"]).float().eval()


@torch.inference_mode()
def detect(weights, images, device, conf_thres=0.25):
    half = device.type != "cpu"
    model: nn.Module = attempt_load(weights, device)
    if half:
        model.half()
    for path, img in images:
        im = torch.from_numpy(img).to(device)
        im = im.half() if half else im.float()
        im /= 255
        if im.ndim == 3:
            im = im.unsqueeze(0)
        start = time.time()
        pred = model(im)
        scores = pred[..., 4].sigmoid()
        scores[scores < conf_thres] = 0
        print(path, scores.max().item(), time.time() - start)


if __name__ == "__main__":
    detect("best.pt", [], torch.device("cuda"))
