// Measurements, logs and events of a run.
#pragma once

#include "longspan/memory/peak_meter.h"
#include "longspan/report/events.h"
#include "longspan/report/memory_report.h"
#include "longspan/session/session.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_memory.h"

namespace longspan {

/// Only rank 0 writes the log and prints.
struct RunReports {
  /// `meter` as in run_training. All arguments but `memory` must outlive the reports.
  RunReports(const Config& config, const RunMemory& memory, PeakMeter* meter, Events& events);
  RunReports(const RunReports&) = delete;
  RunReports& operator=(const RunReports&) = delete;

  MemoryReport memory;
  RunLog log;
};

}  // namespace longspan
