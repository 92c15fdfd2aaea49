#include "longspan/session/session_own.h"

#include "longspan/config/config.h"

namespace longspan {

SessionOwn::SessionOwn(const Config& settings, const SessionParts& parts)
    : config(std::make_unique<const Config>(settings)),
      plan(plan_run(*config, parts.machine, parts.where,
                    parts.model != nullptr ? &parts.model->config : nullptr)),
      events(parts.where.rank, parts.events),
      control(parts.control != nullptr ? *parts.control : plain_control),
      workers(config->parallel, config->model, plan, control) {}

SessionOwn::~SessionOwn() = default;

}  // namespace longspan
