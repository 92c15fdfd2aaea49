#include "longspan/session/session_own.h"

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"

namespace longspan {

namespace {

const Config& without_dealing(const Config& config) {
  if (!deals_rows(config.parallel)) return config;
  throw UserError(
      "sequence_parallel_size: auto and balance_batches deal the rows of a data set, for `longspan "
      "train`. A session gets its rows from its caller: set a number, and remove "
      "balance_batches.");
}

}  // namespace

SessionOwn::SessionOwn(const Config& settings, const SessionParts& parts)
    : config(std::make_unique<const Config>(without_dealing(settings))),
      plan(plan_run(*config, parts.machine, parts.where,
                    parts.model != nullptr ? &parts.model->config : nullptr)),
      events(parts.where.rank, parts.events),
      control(parts.control != nullptr ? *parts.control : plain_control),
      workers(config->parallel, config->model, plan, control) {}

SessionOwn::~SessionOwn() = default;

}  // namespace longspan
