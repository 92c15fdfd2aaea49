#include "longspan/report/service_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/report/service_script.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Most that services may take to begin a run, and to send the rest at its end.
constexpr std::chrono::seconds kMostToBegin{120}, kMostToEnd{60};
/// The other ranks learn of the error afterwards.
constexpr std::chrono::seconds kMostToEndAfterError{3};
constexpr std::chrono::milliseconds kPause{50};

/// The end of what the process has written to standard error, on lines of its own.
std::string said(const ChildProcess& process) {
  return process.errors().empty() ? "" : ". Its last words:\n" + process.errors();
}

Json first_line(const OutputSettings& config, const std::vector<std::string>& services,
                const std::vector<std::pair<std::string, std::string>>& settings) {
  const ServiceSettings& given = config.services;
  Json line{{"services", services},     {"run_name", config.run_name},
            {"project", given.project}, {"trackio_space_id", given.trackio_space_id},
            {"swanlab", nullptr},       {"settings", Json::object()}};
  if (given.use_swanlab) {
    line["swanlab"] = {{"project", given.swanlab_project},
                       {"workspace", given.swanlab_workspace},
                       {"run_name", given.swanlab_run_name},
                       {"mode", given.swanlab_mode},
                       {"logdir", given.swanlab_logdir}};
  }
  for (const auto& [name, value] : settings) line["settings"][name] = value;
  return line;
}

/// Numbers that are not finite are words of Python's JSON, which JSON itself does not have.
std::string numbers_of(const LogEntry& entry) {
  std::string text;
  for (const auto& [name, value] : entry) {
    const std::string number = std::visit(
        [](auto n) {
          const auto x = static_cast<double>(n);
          if (std::isnan(x)) return std::string("NaN");
          if (std::isinf(x)) return std::string(x > 0 ? "Infinity" : "-Infinity");
          return Json(n).dump();
        },
        value);
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", Json(name).dump(), number);
  }
  return "{" + text + "}";
}

}  // namespace

ServiceLog::ServiceLog(const OutputSettings& config, std::vector<std::string> services,
                       const std::vector<std::pair<std::string, std::string>>& settings)
    : python_(config.surroundings.python), services_(std::move(services)) {
  process_ = std::make_unique<ChildProcess>(
      "exec \"$LONGSPAN_SERVICE_PYTHON\" -c \"$LONGSPAN_SERVICE_SCRIPT\"",
      std::map<std::string, std::string>{{"LONGSPAN_SERVICE_PYTHON", python_},
                                         {"LONGSPAN_SERVICE_SCRIPT", kServiceScript}});
  const std::string names = fmt::format("{}", fmt::join(services_, ", "));
  process_->write(
      first_line(config, services_, settings).dump(-1, ' ', true, Json::error_handler_t::replace) +
      "\n");
  std::string line;
  for (const auto until = Clock::now() + kMostToBegin; line.empty(); line = next_line()) {
    process_->exchange(kPause);
    if (process_->has_ended() && process_->output().empty()) {
      throw UserError(fmt::format("report_to: {}: the Python process for it ({}) has ended{}",
                                  names, python_, said(*process_)));
    }
    if (Clock::now() > until) {
      throw UserError(fmt::format(
          "report_to: {}: no run of it has begun in {} s{}. Remove it from report_to, or check the "
          "address and the key of its server.",
          names, kMostToBegin.count(), said(*process_)));
    }
  }
  const Json answer = parse_json(line, "the answer of report_to's Python process");
  if (answer.contains("missing")) {
    const auto name = answer["missing"].get<std::string>();
    throw UserError(fmt::format(
        "report_to: {0} needs the Python package {0}, which is not installed in the environment of "
        "the run: `{1} -m pip install {0}`, or remove it from report_to.",
        name, python_));
  }
  if (answer.contains("failed")) {
    const auto name = answer["failed"].get<std::string>();
    throw UserError(
        fmt::format("report_to: {0}: the package cannot begin a run: {1}\nRemove the cause, or "
                    "remove {0} from report_to.",
                    name, answer["error"].get<std::string>()));
  }
  for (const auto& [name, address] : answer["begun"].items()) {
    const auto text = address.get<std::string>();
    if (!text.empty()) addresses_.push_back(fmt::format("{}: {}", name, text));
  }
}

std::string ServiceLog::next_line() {
  std::string& output = process_->output();
  const size_t end = output.find('\n');
  if (end == std::string::npos) return "";
  std::string line = output.substr(0, end);
  output.erase(0, end + 1);
  return line;
}

std::vector<std::string> ServiceLog::add(const LogEntry& entry) {
  std::vector<std::string> warnings;
  if (services_.empty()) return warnings;
  process_->write(fmt::format("{{\"entry\": {}}}\n", numbers_of(entry)));
  process_->exchange(std::chrono::milliseconds(0));
  const auto warn = [&](const std::string& name, const std::string& problem) {
    warnings.push_back(fmt::format(
        "report_to: {} has failed: {}. The run goes on without it; trainer_state.json has every "
        "number.",
        name, problem));
    std::erase(services_, name);
  };
  for (std::string line = next_line(); !line.empty(); line = next_line()) {
    const Json answer = parse_json(line, "the answer of report_to's Python process");
    warn(answer["failed"].get<std::string>(), answer["error"].get<std::string>());
  }
  if (process_->has_ended() && !services_.empty()) {
    for (const std::string& name : std::vector(services_)) {
      warn(name, "its Python process has ended" + said(*process_));
    }
  }
  return warnings;
}

ServiceLog::~ServiceLog() {
  if (services_.empty()) return;
  const bool failed = std::uncaught_exceptions() > 0;
  process_->write(fmt::format("{{\"end\": {}}}\n", failed ? 1 : 0));
  process_->end_input();
  const auto until = Clock::now() + (failed ? kMostToEndAfterError : kMostToEnd);
  while (!process_->has_ended() && !process_->has_exited() && Clock::now() < until) {
    process_->exchange(kPause);
  }
}

}  // namespace longspan
