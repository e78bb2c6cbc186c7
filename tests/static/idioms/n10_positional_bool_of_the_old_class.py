import torch
from torch import nn


def train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, epoch, fp16_scaler, clip_grad):
    for images in data_loader:
        images = [im.cuda(non_blocking=True) for im in images]
        with torch.cuda.amp.autocast(fp16_scaler is not None):
            teacher_output = teacher(images[0])
            student_output = torch.cat([student(im) for im in images])
            loss = dino_loss(student_output, teacher_output, epoch)
        optimizer.zero_grad()
        if fp16_scaler is None:
            loss.backward()
            if clip_grad:
                nn.utils.clip_grad_norm_(student.parameters(), clip_grad)
            optimizer.step()
        else:
            fp16_scaler.scale(loss).backward()
            if clip_grad:
                fp16_scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(student.parameters(), clip_grad)
            fp16_scaler.step(optimizer)
            fp16_scaler.update()
        with torch.no_grad():
            for param_q, param_k in zip(student.parameters(), teacher.parameters()):
                param_k.data.mul_(0.996).add_(0.004 * param_q.detach().data)


def dino_loss(student, teacher, epoch):
    return -(teacher.detach().softmax(-1) * student[: len(teacher)].log_softmax(-1)).sum(-1).mean()


def main(args, data_loader):
    student, teacher = nn.Linear(32, 64).cuda(), nn.Linear(32, 64).cuda()
    optimizer = torch.optim.AdamW(student.parameters())
    fp16_scaler = None
    if args.use_fp16:
        fp16_scaler = torch.cuda.amp.GradScaler()
    for epoch in range(args.epochs):
        train_one_epoch(student, teacher, dino_loss, data_loader, optimizer, epoch, fp16_scaler, args.clip_grad)
        save_dict = {"student": student.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        if fp16_scaler is not None:
            save_dict["fp16_scaler"] = fp16_scaler.state_dict()
        torch.save(save_dict, "checkpoint.pth")
