#include "cli/process/node_environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/rendezvous/endpoint.h"

namespace longspan {
namespace {

constexpr const char* kOperators[] = {"PET_NNODES",       "PET_NODE_RANK",   "PET_NPROC_PER_NODE",
                                      "PET_MASTER_ADDR",  "PET_MASTER_PORT", "PET_RDZV_ENDPOINT",
                                      "PET_RDZV_BACKEND", "PET_RDZV_ID",     "PET_RDZV_CONF",
                                      "PET_MAX_RESTARTS", "PET_STANDALONE"};

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number_from(const char* name, std::string_view text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least &&
      number <= most) {
    return number;
  }
  throw UserError(
      fmt::format("environment variable {}={}: wanted is a whole number, at least {}, at most {}",
                  name, text, least, most));
}

std::optional<int> number_in(const char* name, int least, int most) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  return number_from(name, *text, least, most);
}

/// "4" or "4:4"; an elastic job has a lower and a higher number.
std::optional<int> nodes_in(const char* name) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  const size_t colon = text->find(':');
  const int least = number_from(name, text->substr(0, colon), 1, kMostMachines);
  if (colon == std::string::npos) return least;
  if (number_from(name, text->substr(colon + 1), 1, kMostMachines) != least) {
    throw UserError(fmt::format(
        "{}={}: the job is elastic, and a run has a fixed number of machines. Set minReplicas and "
        "maxReplicas of the job to the same number.",
        name, *text));
  }
  return least;
}

/// torchrun's words for the number of devices leave the number to longspan.
std::optional<int> processes_in(const char* name) {
  const std::optional<std::string> text = variable(name);
  if (!text || *text == "auto" || *text == "gpu" || *text == "cpu") return std::nullopt;
  return number_from(name, *text, 1, kMostProcesses);
}

/// Whether a launcher of processes has started this one.
bool is_of_launcher() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (variable(name)) return true;
  }
  return variable("SLURM_STEP_ID") && variable("SLURM_PROCID");
}

}  // namespace

bool is_in_pod() { return variable("KUBERNETES_SERVICE_HOST").has_value(); }

std::optional<NodePlace> node_from_environment() {
  if (is_of_launcher()) return std::nullopt;
  NodePlace place;
  if (variable("PET_NNODES") || variable("PET_NODE_RANK") || variable("PET_NPROC_PER_NODE")) {
    place.num_nodes = nodes_in("PET_NNODES");
    place.node_rank = number_in("PET_NODE_RANK", 0, kMostMachines);
    // PyTorchJob numbers the pods by RANK.
    if (!place.node_rank) place.node_rank = number_in("RANK", 0, kMostMachines);
    place.processes_per_node = processes_in("PET_NPROC_PER_NODE");
    place.max_restarts = number_in("PET_MAX_RESTARTS", 0, kMostMachines);
  } else if (is_in_pod() && variable("RANK") && variable("WORLD_SIZE")) {
    place.num_nodes = number_in("WORLD_SIZE", 1, kMostMachines);
    place.node_rank = number_in("RANK", 0, kMostMachines);
  } else {
    return std::nullopt;
  }
  const std::string meeting = variable("PET_RDZV_BACKEND").value_or("static");
  if (meeting != "static" && meeting != "c10d") {
    throw UserError(fmt::format(
        "PET_RDZV_BACKEND={}: the machines of a run meet at the address of the first one. Set it "
        "to c10d.",
        meeting));
  }
  constexpr int kMostPort = 65535;
  place.master_address = variable("PET_MASTER_ADDR");
  place.master_port = number_in("PET_MASTER_PORT", 1, kMostPort);
  if (const auto endpoint = variable("PET_RDZV_ENDPOINT"); endpoint && !place.master_address) {
    const size_t colon = endpoint->rfind(':');
    place.master_address = endpoint->substr(0, colon);
    if (colon != std::string::npos && !place.master_port) {
      place.master_port =
          number_from("PET_RDZV_ENDPOINT", endpoint->substr(colon + 1), 1, kMostPort);
    }
  }
  return place;
}

void remove_node_from_environment() {
  for (const char* name : kOperators) unsetenv(name);
}

}  // namespace longspan
