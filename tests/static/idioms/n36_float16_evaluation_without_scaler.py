import torch
from torch import nn
from tqdm import tqdm


@torch.inference_mode()
def evaluate(net, dataloader, device, amp):
    net.eval()
    dice_score = 0
    with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
        for image, mask_true in tqdm(dataloader, desc="Validation round"):
            mask_pred = net(image.to(device, memory_format=torch.channels_last))
            mask_pred = (torch.sigmoid(mask_pred) > 0.5).float()
            inter = 2 * (mask_pred * mask_true.to(device)).sum()
            sets = mask_pred.sum() + mask_true.to(device).sum()
            dice_score += (inter + 1e-6) / (sets + 1e-6)
    net.train()
    return dice_score / max(len(dataloader), 1)


def extract_features(model, images):
    features = []
    for image in images:
        with torch.no_grad(), torch.autocast("cuda"):
            features.append(nn.functional.normalize(model(image.cuda()), dim=-1).float().cpu())
    return torch.cat(features)
