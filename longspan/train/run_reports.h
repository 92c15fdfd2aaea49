// What a run measures, logs and shows.
#pragma once

#include "longspan/memory/peak_meter.h"
#include "longspan/report/console.h"
#include "longspan/report/memory_report.h"
#include "longspan/report/row_traffic.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_memory.h"
#include "longspan/train/run_model.h"

namespace longspan {

/// Rank 0 alone writes the log and says something.
struct RunReports {
  /// `model` has its objective. `meter` as in run_training. Both outlive the reports.
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
