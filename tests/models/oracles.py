"""Slow, obvious versions of losses and metrics: plain loops, no arrays."""

import math
from itertools import combinations


def lambda_rank(score, label):
    n = len(score)
    by_score = sorted(range(n), key=lambda i: -score[i])
    rank = {item: position + 1 for position, item in enumerate(by_score)}
    ideal = sorted(label, reverse=True)
    max_dcg = sum((2**y - 1) / math.log2(2 + p) for p, y in enumerate(ideal))
    total = 0.0
    for i in range(n):
        for j in range(n):
            if label[i] <= label[j]:
                continue
            d_i, d_j = math.log2(1 + rank[i]), math.log2(1 + rank[j])
            gain = abs((2 ** label[i] - 1) / max_dcg - (2 ** label[j] - 1) / max_dcg)
            weight = abs(1 / d_i - 1 / d_j) * gain
            sigmoid = 1 / (1 + math.exp(-(score[i] - score[j])))
            total -= math.log2(max(sigmoid, 1e-10) ** weight)
    return total


def rank_net(score, label):
    losses = [
        math.log(1 + math.exp(-(s_i - s_j)))
        for s_i, y_i in zip(score, label, strict=True)
        for s_j, y_j in zip(score, label, strict=True)
        if y_i > y_j
    ]
    return len(score) * sum(losses) / len(losses) if losses else 0.0


def list_net(score, label, temperature):
    target = [math.exp(y / temperature) for y in label]
    predicted = [math.exp(s) for s in score]
    total = 0.0
    for t, p in zip(target, predicted, strict=True):
        total -= t / sum(target) * math.log(p / sum(predicted))
    return total


def top_share(score, label, share):
    count = max(1, math.ceil(share * len(score)))
    edge = sorted(label, reverse=True)[count - 1]
    weight = [math.exp(s) for s in score]
    inside = sum(w for w, y in zip(weight, label, strict=True) if y >= edge and y > 0)
    return -math.log(inside / sum(weight)) if inside else 0.0


def mean_square(score, label):
    return sum((s - y) ** 2 for s, y in zip(score, label, strict=True))


def pairwise_accuracy(latency, score):
    agree = total = 0
    for i, j in combinations(range(len(latency)), 2):
        total += 1
        agree += (score[i] > score[j]) == (latency[i] < latency[j])
    return agree / total


def top(latency, score, k):
    best_predicted = sorted(range(len(score)), key=lambda i: -score[i])[:k]
    return min(latency[i] for i in best_predicted)


def kth_best_of_kept(latency, score, size, k):
    kept = sorted(range(len(score)), key=lambda i: -score[i])[:size]
    return sorted(latency[i] for i in kept)[k - 1]


def peak_score(latency, score, k):
    label = [min(latency) / value for value in latency]
    order = sorted(range(len(score)), key=lambda i: -score[i])
    values = [max(label[i] for i in order[:j]) for j in range(1, k + 1)]
    return sum(values) / k / max(label)


def ndcg(latency, score):
    label = [min(latency) / value for value in latency]
    order = sorted(range(len(score)), key=lambda i: -score[i])
    dcg = sum((2 ** label[i] - 1) / math.log2(2 + p) for p, i in enumerate(order))
    ideal = sorted(label, reverse=True)
    return dcg / sum((2**y - 1) / math.log2(2 + p) for p, y in enumerate(ideal))


def expected_kth_best(latency, size, k):
    """Mean over every subset of `size` of its k-th smallest latency."""
    subsets = list(combinations(latency, size))
    return sum(sorted(subset)[k - 1] for subset in subsets) / len(subsets)
