#include "cli/process/launcher_environment.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "cli/process/node_environment.h"
#include "longspan/base/user_error.h"

namespace longspan {
namespace {

// Sets the given launcher variables for one scope, and unsets all others.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name)) saved_[name] = value;
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kNames) {
      auto value = saved_.find(name);
      value == saved_.end() ? unsetenv(name) : setenv(name, value->second.c_str(), 1);
    }
  }

 private:
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MPI_LOCALRANKID",
                                           "MPI_LOCALNRANKS",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_LOCALID",
                                           "SLURM_STEP_ID",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_NUM_NODES",
                                           "SLURM_NNODES",
                                           "SLURM_STEP_NODELIST",
                                           "SLURM_LAUNCH_NODE_IPADDR",
                                           "SLURM_JOB_ID",
                                           "SLURM_RESTART_COUNT",
                                           "SLURM_CPUS_PER_TASK",
                                           "SLURM_GPUS_PER_TASK",
                                           "SLURM_TRES_PER_TASK",
                                           "PET_NNODES",
                                           "PET_NODE_RANK",
                                           "PET_NPROC_PER_NODE",
                                           "PET_MASTER_ADDR",
                                           "PET_MASTER_PORT",
                                           "PET_RDZV_ENDPOINT",
                                           "KUBERNETES_SERVICE_HOST",
                                           "GLOO_SOCKET_IFNAME",
                                           "TENSORBOARD_LOGGING_DIR"};
  std::map<std::string, std::string> saved_;
};

bool is_node(const std::map<std::string, std::string>& variables) {
  const Environment environment(variables);
  return node_from_environment().has_value();
}

TEST_CASE("rendezvous: no launcher is one process") {
  Environment environment({});
  CHECK(rendezvous_from_environment().world_size == 1);
}

TEST_CASE("rendezvous: torchrun") {
  Environment environment({{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "1234"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const Rendezvous where = rendezvous_from_environment();
  CHECK(where.rank == 5);
  CHECK(where.world_size == 8);
  CHECK(where.local_rank == 1);
  CHECK(where.local_world_size == 4);
  CHECK(where.master_address == "node0");
  CHECK(where.master_port == 1234);
  CHECK(where.launcher_hosts_store);
}

TEST_CASE("rendezvous: Open MPI, on one machine and on several") {
  std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  {
    Environment environment(variables);
    const Rendezvous where = rendezvous_from_environment();
    CHECK(where.rank == 3);
    CHECK(where.world_size == 4);
    CHECK(where.master_address == "127.0.0.1");
  }
  variables.insert_or_assign("OMPI_COMM_WORLD_LOCAL_SIZE", std::string("2"));
  Environment environment(variables);
  CHECK_THROWS_WITH_AS(rendezvous_from_environment(), doctest::Contains("MASTER_ADDR"), UserError);
}

TEST_CASE("rendezvous: PMI") {
  Environment environment({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}});
  CHECK(rendezvous_from_environment().rank == 1);
  CHECK(rendezvous_from_environment().local_rank == 1);
}

TEST_CASE("rendezvous: a Slurm step; an allocation without a step is one process") {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "6"},
                                               {"SLURM_NTASKS", "8"},
                                               {"SLURM_LOCALID", "2"},
                                               {"SLURM_NNODES", "2"},
                                               {"SLURM_STEP_NODELIST", "gpu[07-08],spare"},
                                               {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                                               {"SLURM_JOB_ID", "31234"}};
  {
    Environment environment(variables);
    CHECK(rendezvous_from_environment().world_size == 1);
  }
  variables.emplace("SLURM_STEP_ID", "0");
  Environment environment(variables);
  const Rendezvous where = rendezvous_from_environment();
  CHECK(where.rank == 6);
  CHECK(where.world_size == 8);
  CHECK(where.local_rank == 2);
  CHECK(where.local_world_size == 4);
  CHECK(where.master_address == "gpu07");
  CHECK(where.master_port == 21234);
  CHECK(where.threads == 0);
  CHECK(!where.has_own_gpus);
  CHECK(where.processes_on_gpus() == 4);
  for (const auto& [given, threads] : {std::pair("12", 12), {"-1", 0}}) {
    std::map<std::string, std::string> with_cores = variables;
    with_cores["SLURM_CPUS_PER_TASK"] = given;
    const Environment cores(with_cores);
    CHECK(rendezvous_from_environment().threads == threads);
  }
  for (const auto& [name, value] :
       {std::pair("SLURM_GPUS_PER_TASK", "1"), {"SLURM_TRES_PER_TASK", "cpu=8,gres/gpu:1"}}) {
    std::map<std::string, std::string> own = variables;
    own[name] = value;
    const Environment with_own(own);
    CHECK(rendezvous_from_environment().processes_on_gpus() == 1);
  }
}

TEST_CASE("rendezvous: the shell of an interactive Slurm allocation is one process") {
  Environment environment({{"SLURM_STEP_ID", "4294967290"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_STEP_NUM_TASKS", "1"},
                           {"SLURM_JOB_ID", "31234"}});
  CHECK(rendezvous_from_environment().world_size == 1);
  CHECK(rendezvous_from_environment().rank == 0);
}

TEST_CASE("node: the pods of PyTorchJob and of TrainJob are machines") {
  {
    // nprocPerNode is set: WORLD_SIZE counts processes, RANK counts pods.
    Environment environment({{"RANK", "1"},
                             {"WORLD_SIZE", "16"},
                             {"MASTER_ADDR", "job-master-0"},
                             {"MASTER_PORT", "23456"},
                             {"PET_NNODES", "2"},
                             {"PET_NPROC_PER_NODE", "8"},
                             {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
    const auto node = node_from_environment();
    REQUIRE(node);
    CHECK(node->num_nodes == 2);
    CHECK(node->node_rank == 1);
    CHECK(node->processes_per_node == 8);
  }
  {
    Environment environment({{"PET_NNODES", "4:4"},
                             {"PET_NODE_RANK", "3"},
                             {"PET_NPROC_PER_NODE", "auto"},
                             {"PET_MASTER_ADDR", "node-0"},
                             {"PET_MASTER_PORT", "29400"}});
    const auto node = node_from_environment();
    REQUIRE(node);
    CHECK(node->num_nodes == 4);
    CHECK(node->node_rank == 3);
    CHECK(!node->processes_per_node);
    CHECK(node->master_address == "node-0");
    CHECK(node->master_port == 29400);
  }
  {
    Environment environment(
        {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_RDZV_ENDPOINT", "job-worker-0:29401"}});
    CHECK(node_from_environment()->master_address == "job-worker-0");
    CHECK(node_from_environment()->master_port == 29401);
  }
  {
    // Without PET_*, a pod is a machine; outside of pods RANK is that of a process.
    const std::map<std::string, std::string> ranks{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
    std::map<std::string, std::string> pod = ranks;
    pod["KUBERNETES_SERVICE_HOST"] = "10.96.0.1";
    CHECK(!is_node(ranks));
    CHECK(is_node(pod));
    // A process that torchrun has started in a pod.
    pod["LOCAL_RANK"] = "1";
    CHECK(!is_node(pod));
    // Processes of mpirun and of srun in a pod of Kubeflow's.
    for (const std::map<std::string, std::string>& launcher :
         {std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", "0"}},
          {{"PMI_RANK", "0"}},
          {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}}}) {
      std::map<std::string, std::string> variables{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}};
      CHECK(is_node(variables));
      variables.insert(launcher.begin(), launcher.end());
      CHECK(!is_node(variables));
    }
  }
  {
    Environment environment({{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "0"}});
    CHECK_THROWS_WITH_AS(node_from_environment(), doctest::Contains("elastic"), UserError);
  }
  Environment environment({{"PET_NNODES", "two"}, {"PET_NODE_RANK", "0"}});
  CHECK_THROWS_WITH_AS(node_from_environment(), doctest::Contains("PET_NNODES=two"), UserError);
}

TEST_CASE("rendezvous: half-set or broken variables are named") {
  auto error_of = [](const std::map<std::string, std::string>& variables) -> std::string {
    Environment environment(variables);
    try {
      rendezvous_from_environment();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of({{"RANK", "0"}}).find("WORLD_SIZE is not") != std::string::npos);
  CHECK(error_of({{"WORLD_SIZE", "2"}}).find("RANK is not") != std::string::npos);
  CHECK(error_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK=x") != std::string::npos);
  CHECK(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).find("do not fit") !=
        std::string::npos);
  for (const char* port : {"0", "65536", "70000", "-1"}) {
    CHECK(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}})
              .find(std::string("MASTER_PORT=") + port + " is no port") == 0);
  }
}

TEST_CASE("surroundings: the interfaces of Gloo, TensorBoard's folder, Slurm's job") {
  {
    Environment environment({});
    CHECK(rendezvous_from_environment().interfaces == "");
    const OutputSurroundings surroundings = surroundings_of_output();
    CHECK(surroundings.logging_dir == "");
    CHECK(surroundings.cluster_job == "");
    CHECK(!surroundings.job_was_requeued);
  }
  {
    Environment environment({{"GLOO_SOCKET_IFNAME", "ib0,ib1"},
                             {"TENSORBOARD_LOGGING_DIR", "/events"},
                             {"SLURM_JOB_ID", "4711"},
                             {"SLURM_RESTART_COUNT", "1"}});
    CHECK(rendezvous_from_environment().interfaces == "ib0,ib1");
    const OutputSurroundings surroundings = surroundings_of_output();
    CHECK(surroundings.logging_dir == "/events");
    CHECK(surroundings.cluster_job == "slurm 4711");
    CHECK(surroundings.job_was_requeued);
  }
  Environment environment({{"SLURM_JOB_ID", "4711"}, {"SLURM_RESTART_COUNT", "0"}});
  CHECK(!surroundings_of_output().job_was_requeued);
}

}  // namespace
}  // namespace longspan
