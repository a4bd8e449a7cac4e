"""A small CNN on Fashion-MNIST, as a beginner's tutorial would write it.

Nothing here is made slow on purpose, and nothing is made fast: it is what nearpeak's recipe (cnn.yaml, the same model,
batch, optimizer and epochs) is held against. Usage: python plain_cnn.py [folder of the images] [epochs] [seed]
"""

import gzip
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class FashionMNIST(Dataset):
    """The images whose number is 4 mod 5 are kept for testing."""

    def __init__(self, folder, train):
        # The large set (60,000 images and a test set of its own), or the small one beside this script.
        folder = Path(folder)
        large = (folder / "train-images-idx3-ubyte.gz").exists()
        part = "train" if large and train else "t10k"
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            self.images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
            self.labels = np.frombuffer(file.read()[8:], np.uint8)
        if not large:
            mine = (np.arange(len(self.images)) % 5 == 4) != train
            self.images, self.labels = self.images[mine], self.labels[mine]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        # The transform: to a tensor, to 0…1, then to −1…1.
        image = torch.from_numpy(self.images[i].copy()).float().unsqueeze(0) / 255
        return (image - 0.5) / 0.5, int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 50 * 4 * 4)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


def main(folder=Path(__file__).parent / "data", epochs=5, seed=0, most_steps=None):
    """Returns the loss of each step and the images a second, its evaluation left out."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(FashionMNIST(folder, True), batch_size=64, shuffle=True, num_workers=2)
    test_loader = DataLoader(FashionMNIST(folder, False), batch_size=64, num_workers=2)

    net = Net()
    if torch.cuda.device_count() > 1:
        net = nn.DataParallel(net)
    net.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    losses, seconds, seen = [], 0.0, 0
    for epoch in range(epochs):
        start = time.time()
        running_loss = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = net(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            losses.append(loss.item())
            seen += len(labels)
            if most_steps and len(losses) == most_steps:
                return losses, seen / (seconds + time.time() - start)
        seconds += time.time() - start

        correct = 0
        with torch.no_grad():
            for images, labels in test_loader:
                outputs = net(images.to(device))
                correct += (outputs.argmax(1).cpu() == labels).sum().item()
        accuracy = 100 * correct / len(test_loader.dataset)
        print(f"epoch {epoch + 1}: loss {running_loss / len(train_loader):.4f}, accuracy {accuracy:.2f} %")
    print(f"{seen / seconds:.0f} images/s")
    return losses, seen / seconds


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:1], *map(int, given[1:]))
