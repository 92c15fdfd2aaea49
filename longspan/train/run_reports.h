// Measurements, logs and console of a run.
#pragma once

#include "longspan/memory/peak_meter.h"
#include "longspan/report/console.h"
#include "longspan/report/memory_report.h"
#include "longspan/report/row_traffic.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_memory.h"
#include "longspan/train/run_model.h"

namespace longspan {

/// Only rank 0 writes the log and prints.
struct RunReports {
  /// `model` must have its objective. `meter` as in run_training. Both must outlive the reports.
  RunReports(const Config& config, const RunMemory& memory, const RunModel& model, PeakMeter* meter,
             Console& console);
  RunReports(const RunReports&) = delete;
  RunReports& operator=(const RunReports&) = delete;

  RowTraffic traffic;
  MemoryReport memory;
  RunLog log;
  Console& console;
};

}  // namespace longspan
