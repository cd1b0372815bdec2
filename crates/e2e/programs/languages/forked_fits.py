"""scikit-learn with forked workers: a data set of about the given mebibytes that they read, each fitting models.
METHOD is multiprocessing (fork) or loky (fork and exec, data by a memory map). Prints scores."""

import multiprocessing
import sys

import joblib
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge


def fit(part):
    rows = slice(part, None, 4)
    own = data[rows] * (1 + part)
    forest = RandomForestClassifier(n_estimators=2, max_depth=5, random_state=part).fit(own[:20000], label[rows][:20000])
    ridge = Ridge(alpha=1.0 + part, solver="cholesky").fit(own, data[rows, 0] * 3 + part)
    return part, round(float(forest.score(own[:5000], label[rows][:5000])), 6), round(float(ridge.coef_.sum()), 4)


def fit_given(given, labels, part):
    global data, label
    data, label = given, labels
    return fit(part)


if __name__ == "__main__":
    method, mebibytes = sys.argv[1], int(sys.argv[2])
    random = np.random.default_rng(4)
    data = random.standard_normal((mebibytes * 2048, 32)).astype(np.float64)[:, :]
    label = (data[:, 1] + data[:, 2] > 0).astype(np.int8)
    if method == "fork":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            scores = pool.map(fit, range(4), chunksize=1)
    else:
        scores = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(fit_given)(data, label, p) for p in range(4))
    for score in scores:
        print(*score)
    print("parent", round(float(data.sum()), 4), int(label.sum()))
