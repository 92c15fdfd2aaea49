// torchrun as `longspan train` starts it.
#pragma once

namespace longspan {

/// A Python program that takes torchrun's arguments.
///
/// The program prints nothing when a worker fails, because the worker has printed the cause.
/// (torchrun itself would print a page of its own state.) The program ends with the worker's exit
/// status. Errors of torchrun itself, such as a port in use, are one sentence; LONGSPAN_DEBUG adds
/// the Python traceback.
///
/// The program forwards SIGTERM and SIGUSR1 to the workers and waits for them to save, which takes
/// longer than torchrun waits. A second signal, five seconds later or more, has torchrun's usual
/// effect: torchrun ends the workers. SIGINT, SIGHUP and SIGQUIT have this effect from the first
/// signal on. Once the workers have ended, their result counts: later signals change nothing, and
/// no workers are started again. If SIGTERM and SIGUSR1 are blocked (hold_stop_signals), one thread
/// receives both signals. The main thread starts the workers with both signals blocked, so no
/// signal is lost. A signal that arrives while only some workers have been started is forwarded to
/// all workers.
extern const char* const kQuietTorchrun;

}  // namespace longspan
