import torch
from arch import SSLMetaArch


def do_train(cfg, data_loader):
    model = SSLMetaArch(cfg).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.student.parameters(), betas=(0.9, 0.999))
    fp16_scaler = model.fp16_scaler
    for iteration, data in enumerate(data_loader):
        optimizer.zero_grad(set_to_none=True)
        loss_dict = model.forward_backward(data, teacher_temp=0.07)
        if fp16_scaler is not None:
            if cfg.optim.clip_grad:
                fp16_scaler.unscale_(optimizer)
                for v in model.student.values():
                    torch.nn.utils.clip_grad_norm_(v.parameters(), cfg.optim.clip_grad)
            fp16_scaler.step(optimizer)
            fp16_scaler.update()
        else:
            if cfg.optim.clip_grad:
                for v in model.student.values():
                    torch.nn.utils.clip_grad_norm_(v.parameters(), cfg.optim.clip_grad)
            optimizer.step()
        model.update_teacher(0.996)
        if iteration % 100 == 0:
            print(iteration, {k: v.item() for k, v in loss_dict.items()})
