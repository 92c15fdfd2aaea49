#include "longspan/plan/network_rates.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

constexpr std::pair<const char*, double NetworkRates::*> kFields[] = {
    {"inside_bytes_per_second", &NetworkRates::inside_bytes},
    {"between_bytes_per_second", &NetworkRates::between_bytes},
    {"inside_delay_seconds", &NetworkRates::inside_delay},
    {"between_delay_seconds", &NetworkRates::between_delay}};

}  // namespace

NetworkRates read_network_rates(const std::string& path, bool gpus, bool several_machines) {
  const nlohmann::json file = read_json_file(path, "the file of network_rates");
  const auto refused = [&](const std::string& what) {
    return UserError(fmt::format(
        "network_rates: {}: {}; take the file network.json that longspan bench network has written",
        path, what));
  };
  if (!file.is_object() || !file.contains("rates") || !file["rates"].is_object()) {
    throw refused("there is no object \"rates\"");
  }
  NetworkRates rates;
  for (const auto& [name, field] : kFields) {
    const auto value = file["rates"].find(name);
    if (value == file["rates"].end() || !value->is_number() || value->get<double>() < 0) {
      throw refused(fmt::format("\"{}\" of \"rates\" is no number from 0 on", name));
    }
    rates.*field = value->get<double>();
  }
  const nlohmann::json& given = file["rates"];
  if (!given.contains("ranks_per_machine") || !given["ranks_per_machine"].is_number_integer() ||
      !given.contains("gpus") || !given["gpus"].is_boolean()) {
    throw refused("\"rates\" has no numbers \"ranks_per_machine\" and \"gpus\"");
  }
  rates.ranks_per_machine = given["ranks_per_machine"].get<int>();
  rates.gpus = given["gpus"].get<bool>();
  if (rates.gpus != gpus) {
    throw refused(fmt::format("the rates are those of {}, and the run computes on {}",
                              rates.gpus ? "GPUs" : "CPUs", gpus ? "GPUs" : "CPUs"));
  }
  if (several_machines && rates.between_bytes == 0) {
    throw refused("the rates are those of one machine, and the run has several");
  }
  return rates;
}

nlohmann::ordered_json json_of(const NetworkRates& rates) {
  nlohmann::ordered_json json;
  for (const auto& [name, field] : kFields) json[name] = rates.*field;
  json["ranks_per_machine"] = rates.ranks_per_machine;
  json["gpus"] = rates.gpus;
  return json;
}

}  // namespace longspan
