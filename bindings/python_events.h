// Events of runs and sessions for Python, as JSON texts.
#pragma once

#include <cstdint>

#include "longspan/report/events.h"

namespace longspan {

/// A function of Python: the address of a ctypes.CFUNCTYPE, which takes Python's lock itself. The
/// function must not raise.
using PythonListener = void (*)(const char* json);

/// Passes each event to a function of Python.
class PythonSink final : public EventSink {
 public:
  /// `listener`: the address of a PythonListener; 0: events are discarded.
  explicit PythonSink(int64_t listener)
      : listener_(reinterpret_cast<PythonListener>(static_cast<intptr_t>(listener))) {}

  void take(const Event& event) override;

 private:
  PythonListener listener_;
};

}  // namespace longspan
