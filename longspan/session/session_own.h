// The parts that a session makes and owns, if its caller does not pass such parts.
#pragma once

#include <memory>

#include "longspan/liveness/run_control.h"
#include "longspan/session/run_plan.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"

namespace longspan {

struct Config;

struct SessionOwn {
  SessionOwn(const Config& settings, const SessionParts& parts);
  ~SessionOwn();

  std::unique_ptr<const Config> config;
  RunPlan plan;
  Events events;
  PlainRunControl plain_control;
  RunControl& control;
  Workers workers;
};

}  // namespace longspan
