// The parts that a session makes for itself, if no caller holds them.
#pragma once

#include "longspan/config/config.h"
#include "longspan/liveness/run_control.h"
#include "longspan/session/run_plan.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"

namespace longspan {

struct SessionOwn {
  SessionOwn(const Config& settings, const SessionParts& parts)
      : config(settings),
        plan(plan_run(config, parts.machine, parts.where,
                      parts.model != nullptr ? &parts.model->config : nullptr)),
        events(parts.where.rank, parts.events),
        control(parts.control != nullptr ? *parts.control : plain_control),
        workers(config.parallel, config.model, plan, control) {}

  Config config;
  RunPlan plan;
  Events events;
  PlainRunControl plain_control;
  RunControl& control;
  Workers workers;
};

}  // namespace longspan
