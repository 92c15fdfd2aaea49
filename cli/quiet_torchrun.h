// torchrun as `longspan train` starts it.
#pragma once

namespace longspan {

/// A program for Python, with torchrun's arguments.
///
/// It is quiet when a worker fails: the worker has said why; torchrun would add a page about
/// itself. It ends with the worker's own status. What torchrun itself cannot do, as when the port
/// is taken, is one sentence; LONGSPAN_DEBUG shows Python's whole account of it too.
///
/// SIGTERM and SIGUSR1 are handed on, and what the workers make of them is awaited: they save,
/// which takes longer than torchrun's patience. A second signal, five seconds later or more, is
/// torchrun's own business: it ends them. SIGINT, SIGHUP and SIGQUIT are from the first. Once the
/// workers have ended, how they did is what counts, and what comes until the last instruction
/// changes nothing; others are not started then. Where SIGTERM and SIGUSR1 are held
/// (hold_stop_signals), one thread receives them, and the workers, which the main thread starts,
/// begin with them held: until they look, none is lost. What comes while some of the workers are
/// there is for all of them.
extern const char* const kQuietTorchrun;

}  // namespace longspan
