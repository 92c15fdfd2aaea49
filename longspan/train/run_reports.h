// Measurements, logs and events of a run.
#pragma once

#include <optional>

#include "longspan/memory/peak_meter.h"
#include "longspan/report/curves.h"
#include "longspan/report/events.h"
#include "longspan/report/memory_report.h"
#include "longspan/session/session.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_memory.h"

namespace longspan {

struct MethodSettings;
struct OptimizationSettings;

/// `log` and `pictures` are sinks of the run's events; only rank 0 gets events.
struct RunReports {
  /// `meter` as in run_training. All arguments but `memory` must outlive the reports.
  RunReports(const MethodSettings& method, const OptimizationSettings& optimization,
             const OutputSettings& output, const RunMemory& memory, PeakMeter* meter,
             Events& events);
  RunReports(const RunReports&) = delete;
  RunReports& operator=(const RunReports&) = delete;

  MemoryReport memory;
  RunLog log;
  std::optional<Pictures> pictures;  // with plot_loss
};

}  // namespace longspan
