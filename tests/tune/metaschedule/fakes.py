"""TVM's tuning without processes: a builder that hands on programs, a runner with a formula."""

from pruner.tune.tvm_import import load_tvm

ms = load_tvm().meta_schedule
derived_object = load_tvm().tvm.ir.utils.derived_object


@derived_object
class Noting(ms.builder.PyBuilder):
    """Builds nothing; the artifact is the number of the program among all it was given."""

    def __init__(self, error=None):
        self.modules, self.error = [], error

    def build(self, build_inputs):
        results = []
        for one in build_inputs:
            self.modules.append(one.mod)
            name = None if self.error else str(len(self.modules) - 1)
            results.append(ms.builder.BuilderResult(name, self.error))
        return results


@derived_object
class Ready(ms.runner.PyRunnerFuture):
    def __init__(self, result):
        self.answer = result

    def done(self):
        return True

    def result(self):
        return self.answer


@derived_object
class Computing(ms.runner.PyRunner):
    """A latency that only the program decides; every eleventh program or so fails."""

    def __init__(self, builder):
        self.builder = builder

    def run(self, runner_inputs):
        return [Ready(self._result(int(one.artifact_path))) for one in runner_inputs]

    def _result(self, number):
        number = sum(self.builder.modules[number].script().encode()) % 1009
        if number % 11 == 0:
            return ms.runner.RunnerResult(None, "LocalRunner: An exception occurred")
        return ms.runner.RunnerResult([1e-3 * (1 + number / 1009)], None)


def measuring(error=None):
    """What stands for processes in ``tune_tir`` and ``tune_relax``; callbacks delete no files."""
    builder, made = Noting(error), ms.measure_callback
    callbacks = [made.AddToDatabase(), made.UpdateCostModel()]
    return {"builder": builder, "runner": Computing(builder), "measure_callbacks": callbacks}
