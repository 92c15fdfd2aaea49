// Keys: processes, and how they divide rows and experts.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/config/register_choices.h"
#include "longspan/registers/method.h"

namespace longspan::key_tables {

KeySection parallel_keys() {
  using S = ParallelSettings;
  using enum OnResume;
  static const std::string with_degrees = names_of(methods_that_take(kUlyssesDegree));
  static const std::string ulysses_degree_help =
      with_degrees + ": processes that exchange heads; left out: Longspan chooses.";
  static const std::string ring_degree_help =
      with_degrees + ": processes of a ring; left out: Longspan chooses.";
  static const std::string window_help =
      names_of(methods_that_take(kWindowSize)) +
      ": processes of an inner ring; left out: those of fast_domain_size, or of a machine.";
  static const std::string waves_help = help_of_waves();
  return {
      "Processes",
      {noted(number("nproc_per_node", &S::nproc_per_node, kFree, 1,
                    "Workers on this machine; left out: one for each GPU, or one if there is none.",
                    kMostProcesses),
             "It has no such key; the environment variable NPROC_PER_NODE says it, here too."),
       noted(or_zero("auto",
                     number("sequence_parallel_size", &S::sequence_parallel_size, kFree, 1,
                            "Processes that share each row; must divide the number of processes. "
                            "auto: each row has its own number of processes, by its length "
                            "(all stages but grpo and distill). A step then has "
                            "per_device_train_batch_size x gradient_accumulation_steps rows for "
                            "each process.")),
             kShare),
       noted(number("tokens_per_process", &S::tokens_per_process, kFree, 1,
                    "With sequence_parallel_size: auto, the most tokens of a row on each of its "
                    "processes. A larger number gives short rows fewer processes, and takes more "
                    "memory. Left out: cutoff_len divided by the number of processes.",
                    kMostTokens),
             kOwn),
       noted(plain("balance_batches", &S::balance_batches, kFree,
                   "Deals the rows of a step to the groups of processes so that all groups have "
                   "equal work, attention included (all stages but grpo and distill). Included in "
                   "sequence_parallel_size: auto."),
             kOwn),
       noted(choice(
                 "sequence_parallel_mode", &S::sequence_parallel_mode, kFree, auto_or_methods(),
                 "How the processes share a row. auto, or left out: chosen by heads, processes and "
                 "row; the run prints the reason."),
             kShare),
       noted(number("sequence_parallel_ulysses_degree", &S::sequence_parallel_ulysses_degree, kFree,
                    1, ulysses_degree_help),
             kOwn),
       noted(number("sequence_parallel_ring_degree", &S::sequence_parallel_ring_degree, kFree, 1,
                    ring_degree_help),
             kOwn),
       noted(number("sequence_parallel_window_size", &S::sequence_parallel_window_size, kFree, 1,
                    window_help),
             kOwn),
       noted(number("sequence_parallel_head_waves", &S::sequence_parallel_head_waves, kFree, 1,
                    waves_help),
             kOwn),
       noted(
           number("fast_domain_size", &S::fast_domain_size, kFree, 1,
                  "Number of neighbouring processes whose GPUs are connected by a fast link, such "
                  "as an NVLink domain of several machines, or of a part of one. Plans keep "
                  "groups that exchange much inside it. Left out: the processes of a machine."),
           kOwn),
       noted(number("expert_parallel_size", &S::expert_parallel_size, kFree, 1,
                    "Number of neighbouring processes that divide the experts of each layer; must "
                    "divide the number of processes and the number of experts."),
             kOwn),
       noted(plain("network_rates", &S::network_rates, kFree,
                   "The file network.json of `longspan bench network`. The choices of "
                   "sequence_parallel_mode: auto and of its degrees are then made by the rates in "
                   "this file. Left out: by those of an A100's links, or of Gloo on CPUs."),
             kOwn),
       noted(plain("check_network", &S::check_network, kFree,
                   "On several machines: measure the links between machines at the start, and name "
                   "slow ones."),
             kOwn)}};
}

}  // namespace longspan::key_tables
