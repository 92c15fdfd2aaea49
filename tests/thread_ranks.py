"""Small trainings with ranks that are threads of one process (thread_ranks.cpp), which lives as long as pytest's worker.

They compute what processes of `longspan train` compute, through the same library. What is not tested so are starts, ends and
signals of processes, and Gloo between them: tests of these use conftest.Running."""

import atexit
import json
import os
import pathlib
import subprocess
import threading

from patience import patient_time

BUILD = pathlib.Path(os.environ.get("LONGSPAN_BUILD", pathlib.Path(__file__).resolve().parent.parent / "build"))
PROGRAM = BUILD / "thread_ranks"
# oneDNN and torch never give back what they have compiled and counted: a new process now and then takes less in the end.
MOST_RUNS = 200


class Trainings:
    """The process, or none yet."""

    def __init__(self):
        self.process, self.num_runs = None, 0
        atexit.register(self.end)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def train(self, config, num_ranks, port, log, timeout, stream):
        """The run's status. Where the process has died: minus the number of its signal. Within as many seconds of work."""
        if not self.process or self.process.poll() is not None or self.num_runs == MOST_RUNS:
            self.end()
            self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                            env=dict(os.environ, OMP_NUM_THREADS="1"))
            self.num_runs = 0
        self.num_runs += 1
        request = dict(config=str(config), ranks=num_ranks, port=port, log=str(log), stream=stream)
        self.process.stdin.write(json.dumps(request) + "\n")
        answers = []
        reader = threading.Thread(target=lambda: answers.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        end = patient_time() + timeout
        while reader.is_alive() and patient_time() < end:
            reader.join(0.5)
        if answers and answers[0]:
            return json.loads(answers[0])["status"]
        if reader.is_alive():
            self.end()
            raise AssertionError(f"a training has not ended in {timeout} s: {log}")
        status = self.process.wait()
        self.process = None
        return status


trainings = Trainings()
