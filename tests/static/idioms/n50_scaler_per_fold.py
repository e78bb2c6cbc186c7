import torch
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Subset


def train_fold(fold, train_set, epochs):
    model = nn.Linear(16, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x, y in DataLoader(train_set, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(fold, epoch, loss.item())
    return model


def main(dataset):
    folds = KFold(n_splits=5, shuffle=True, random_state=42)
    for fold, (train_index, _) in enumerate(folds.split(range(len(dataset)))):
        model = train_fold(fold, Subset(dataset, train_index), epochs=10)
        torch.save(model.state_dict(), f"fold{fold}.pth")
