import torch
from accelerate import Accelerator
from diffusers import UNet2DConditionModel
from diffusers.training_utils import cast_training_params
from peft import LoraConfig


def main(args, loader):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=args.accumulation)
    unet = UNet2DConditionModel.from_pretrained(args.model, subfolder="unet")
    unet.requires_grad_(False)
    unet.to(accelerator.device, dtype=torch.float16)
    unet.add_adapter(LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    cast_training_params(unet, dtype=torch.float32)
    lora_layers = filter(lambda p: p.requires_grad, unet.parameters())
    optimizer = torch.optim.AdamW(lora_layers, lr=args.learning_rate)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    for latents, timesteps, states, noise in loader:
        with accelerator.accumulate(unet):
            pred = unet(latents, timesteps, states).sample
            loss = torch.nn.functional.mse_loss(pred.float(), noise.float())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
