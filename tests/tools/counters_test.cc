// The counters of RDMA ports, in a tree of files that looks like sysfs: what
// doctor and stat make of them.

#include "tools/rcsock/counters/counters.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/lane/rdma/vectors.h"
#include "tools/rcsock/doctor/network.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

class Counters : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/sysfs.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override {
    ::unsetenv("SYSFS_PATH");
    fs::remove_all(root_);
  }
  void Write(const std::string& path, const std::string& text) {
    const fs::path at = root_ / "class/infiniband" / path;
    fs::create_directories(at.parent_path());
    std::ofstream(at) << text << "\n";
  }
  void Make(const std::string& directory) {
    fs::create_directories(root_ / "class/infiniband" / directory);
  }
  std::string Text(const std::string& device, bool only_counted = false) {
    std::string text;
    for (const PortCounters& port : CountersOf(device, root_)) {
      text += std::to_string(port.port) + ": " +
              CountersText(port, only_counted) + "\n";
    }
    return text;
  }
  nlohmann::json Doctor() {
    Findings findings;
    ExamineCounters(root_, &findings);
    return nlohmann::json::parse(findings.Json())["findings"];
  }
  fs::path root_;
};

TEST_F(Counters, OfEachDriverByOneName) {
  Write("mlx5_0/ports/1/hw_counters/local_ack_timeout_err", "2");
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "3");
  Write("mlx5_0/ports/1/hw_counters/packet_seq_err", "4");
  Write("mlx5_0/ports/1/hw_counters/rnr_nak_retry_err", "0");
  Write("mlx5_0/ports/1/hw_counters/roce_adp_retrans", "5");
  Write("mlx5_0/ports/1/hw_counters/roce_adp_retrans_to", "5");
  Write("mlx5_0/ports/1/hw_counters/np_cnp_sent", "6");
  Write("mlx5_0/ports/1/hw_counters/rp_cnp_handled", "7");
  Write("mlx5_0/ports/1/hw_counters/lifespan", "10");
  Write("mlx5_0/ports/1/counters/port_rcv_packets", "1000");
  Write("mlx5_0/ports/1/counters/symbol_error", "8");
  EXPECT_EQ(Text("mlx5_0"),
            "1: 2 time-outs, 7 out of sequence, 0 RNR, 5 retransmits, "
            "8 link errors, 13 congestion marks\n");
  EXPECT_EQ(Text("mlx5_0", true),
            "1: 2 time-outs, 7 out of sequence, 5 retransmits, 8 link errors, "
            "13 congestion marks\n");
  Write("bnxt_re0/ports/1/hw_counters/to_retransmits", "1");
  Write("bnxt_re0/ports/1/hw_counters/seq_err_naks_rcvd", "2");
  Write("bnxt_re0/ports/1/hw_counters/rnr_naks_rcvd", "3");
  Write("bnxt_re0/ports/1/hw_counters/max_retry_exceeded", "4");
  Write("bnxt_re0/ports/1/hw_counters/rx_ecn_marked_pkts", "5");
  EXPECT_EQ(Text("bnxt_re0"),
            "1: 1 time-outs, 2 out of sequence, 3 RNR, 4 retries used up, "
            "5 congestion marks\n");
  Write("irdma0/ports/1/hw_counters/RetransSegs", "1");
  Write("irdma0/ports/1/hw_counters/RNR received", "2");
  Write("irdma0/ports/1/hw_counters/cnpHandled", "3");
  EXPECT_EQ(Text("irdma0"), "1: 2 RNR, 1 retransmits, 3 congestion marks\n");
  Write("rxe0/ports/1/hw_counters/completer_retry_err", "1");
  Write("rxe0/ports/1/hw_counters/out_of_seq_request", "2");
  Write("rxe0/ports/1/hw_counters/rcvd_seq_err", "3");
  Write("rxe0/ports/1/hw_counters/send_rnr_err", "4");
  Write("rxe0/ports/1/hw_counters/retry_exceeded_err", "5");
  Write("rxe0/ports/1/hw_counters/sent_pkts", "77");
  EXPECT_EQ(Text("rxe0"),
            "1: 5 out of sequence, 4 RNR, 1 retransmits, 5 retries used up\n");
  // Of siw there are none.
  Make("siw0/ports/1");
  EXPECT_EQ(Text("siw0"), "1: \n");
  EXPECT_EQ(Text("nowhere0"), "");
}

TEST_F(Counters, PortsAreApartAndInOrder) {
  for (const char* port : {"10", "2", "1"}) {
    Write(std::string("mlx5_0/ports/") + port + "/hw_counters/out_of_sequence",
          port);
  }
  Write("mlx5_0/ports/x/hw_counters/out_of_sequence", "5");
  // The device's own are of no port where it has several.
  Write("mlx5_0/hw_counters/local_ack_timeout_err", "9");
  EXPECT_EQ(Text("mlx5_0"),
            "1: 1 out of sequence\n2: 2 out of sequence\n"
            "10: 10 out of sequence\n");
  Make("efa0/ports/1");
  Write("efa0/hw_counters/retrans_pkts", "3");
  EXPECT_EQ(Text("efa0"), "1: 3 retransmits\n");
}

TEST_F(Counters, WhatIsNoNumberIsNotThere) {
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "many");
  Write("mlx5_0/ports/1/hw_counters/packet_seq_err", "");
  Make("mlx5_0/ports/1/hw_counters/local_ack_timeout_err");
  EXPECT_EQ(Text("mlx5_0"), "1: \n");
}

TEST_F(Counters, Changes) {
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "3");
  Write("mlx5_0/ports/1/hw_counters/local_ack_timeout_err", "5");
  Write("mlx5_0/ports/1/hw_counters/rnr_nak_retry_err", "7");
  const DeviceCounters before = AllCounters(root_);
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "10");
  Write("mlx5_0/ports/1/hw_counters/local_ack_timeout_err", "1");  // reset
  Write("mlx5_0/ports/1/hw_counters/np_cnp_sent", "9");            // new
  DeviceCounters now = AllCounters(root_);
  AddChanges(before, &now);
  EXPECT_EQ(CountersText(now["mlx5_0"][0], false),
            "1 time-outs, 10 (+7) out of sequence, 7 RNR, 9 congestion marks");
}

TEST_F(Counters, SysfsIsWhereTheEnvironmentSays) {
  EXPECT_EQ(SysfsRoot(), "/sys");
  ::setenv("SYSFS_PATH", root_.c_str(), 1);
  EXPECT_EQ(SysfsRoot(), root_);
  ::setenv("SYSFS_PATH", "", 1);
  EXPECT_EQ(SysfsRoot(), "/sys");
}

TEST_F(Counters, DoctorWarnsOfLoss) {
  Write("a0/ports/1/hw_counters/out_of_sequence", "0");
  Write("b0/ports/1/hw_counters/local_ack_timeout_err", "12");
  Write("b0/ports/1/hw_counters/out_of_sequence", "0");
  Write("c0/ports/1/hw_counters/np_cnp_sent", "3");
  Write("c0/ports/1/hw_counters/out_of_sequence", "0");
  Make("d0/ports/1");
  Write("e0/ports/1/counters/symbol_error", "3");
  Write("f0/ports/2/hw_counters/out_of_buffer", "3");
  const nlohmann::json found = Doctor();
  ASSERT_EQ(found.size(), 6u);
  const char* const verdicts[] = {"good", "warn", "note",
                                  "note", "warn", "warn"};
  const char* const mends[] = {"", "PFC, ECN", "", "", "cable", "was late"};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(found[i]["verdict"], verdicts[i]) << found[i];
    EXPECT_NE(found[i].value("mend", "").find(mends[i]), std::string::npos)
        << found[i];
  }
  EXPECT_EQ(found[1]["about"], "b0 port 1");
  EXPECT_EQ(found[1]["words"],
            "since its driver was loaded, for all programs: 12 time-outs");
  EXPECT_EQ(found[2]["words"], "nothing lost; 3 congestion marks");
  EXPECT_EQ(found[3]["words"], "its driver counts no lost packets");
  EXPECT_EQ(found[5]["about"], "f0 port 2");
}

// --- CPUs

class Places : public Counters {
 protected:
  // A device on node 1, with four completion vectors and another interrupt.
  void MakeDevice(const std::string& node) {
    Write("mlx5_0/device/numa_node", node);
    Write("mlx5_0/device/local_cpulist", "4-7,12");
    for (int irq = 60; irq < 65; ++irq) {
      const std::string number = std::to_string(irq);
      Write("mlx5_0/device/msi_irqs/" + number, "msix");
      const fs::path at = root_ / "proc/irq" / number;
      fs::create_directories(at);
      // The first is of asynchronous events; the vectors come backwards.
      fs::create_directories(at / (irq == 60 ? "mlx5_async@pci:0000:3b:00.0"
                                             : "mlx5_comp" +
                                                   std::to_string(64 - irq) +
                                                   "@pci:0000:3b:00.0"));
      std::ofstream(at / "smp_affinity_list") << irq - 57 << "\n";
    }
  }
  static cpu_set_t Cpus(const char* list) {
    cpu_set_t cpus;
    EXPECT_TRUE(lane::rdma::ParseCpus(list, &cpus)) << list;
    return cpus;
  }
  nlohmann::json Doctor(const char* allowed) {
    Findings findings;
    ExaminePlaces(root_, root_ / "proc", Cpus(allowed), &findings);
    return nlohmann::json::parse(findings.Json())["findings"];
  }
  std::vector<cpu_set_t> Vectors() {
    return lane::rdma::VectorCpus(root_.c_str(), (root_ / "proc").c_str(),
                                  "mlx5_0");
  }
};

TEST_F(Places, DoctorSaysWhatIsNear) {
  MakeDevice("1");
  struct Case {
    const char* allowed;
    const char* verdict;
    const char* words;
  };
  for (const auto& [allowed, verdict, words] : {
           Case{"4-6", "good", "near are 3 of the 3 CPUs"},
           Case{"0-7", "note", "near are 4 of the 8 CPUs"},
           Case{"0-3", "warn",
                "near are 0 of the 4 CPUs that this process may use: each"},
       }) {
    const nlohmann::json found = Doctor(allowed);
    ASSERT_EQ(found.size(), 2u) << found;
    EXPECT_EQ(found[0]["verdict"], verdict) << found;
    EXPECT_EQ(found[0]["words"].get<std::string>().rfind(
                  "on NUMA node 1, CPUs 4-7,12; ", 0),
              0u)
        << found;
    EXPECT_NE(found[0]["words"].get<std::string>().find(words),
              std::string::npos)
        << found;
    EXPECT_EQ(found[0].value("mend", "").find("numactl --cpunodebind=1") == 0,
              std::string(verdict) != "good");
  }
  EXPECT_EQ(Doctor("0-6")[1]["words"],
            "4 completion vectors, whose interrupts go to CPUs 4-7; 3 of them "
            "to CPUs that this process may use");
  EXPECT_EQ(Doctor("0-6")[1]["verdict"], "good");
  EXPECT_EQ(Doctor("0-3")[1]["verdict"], "note");
}

TEST_F(Places, DoctorOnHostsOfOneNode) {
  MakeDevice("-1");
  EXPECT_EQ(Doctor("0-7")[0]["verdict"], "note");
  Make("rxe0/ports/1");  // in software
  EXPECT_EQ(Doctor("0-7").size(), 2u);
}

TEST_F(Places, DoctorWarnsOfOneCpuForAllInterrupts) {
  MakeDevice("1");
  for (const char* irq : {"61", "62", "63", "64"}) {
    std::ofstream(root_ / "proc/irq" / irq / "effective_affinity_list")
        << "2\n";
  }
  const nlohmann::json found = Doctor("0-7");
  EXPECT_EQ(found[1]["verdict"], "warn") << found;
  EXPECT_NE(found[1]["mend"].get<std::string>().find("irqbalance"),
            std::string::npos);
}

TEST_F(Places, VectorsInTheirOrder) {
  EXPECT_TRUE(Vectors().empty());
  MakeDevice("1");
  std::vector<cpu_set_t> vectors = Vectors();
  ASSERT_EQ(vectors.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(CPU_COUNT(&vectors[i]), 1);
    EXPECT_TRUE(CPU_ISSET(7 - i, &vectors[i])) << i;
  }
  // The kernel's own list of names comes first.
  for (int irq = 60; irq < 65; ++irq) {
    const fs::path at = root_ / "kernel/irq" / std::to_string(irq);
    fs::create_directories(at);
    std::ofstream(at / "actions") << "bnxt_re-nq-" << irq - 60 << "@pci:x\n";
  }
  vectors = Vectors();
  ASSERT_EQ(vectors.size(), 5u);
  EXPECT_TRUE(CPU_ISSET(3, &vectors[0]));
  // With one that cannot be read none is known.
  fs::remove(root_ / "proc/irq/62/smp_affinity_list");
  EXPECT_TRUE(Vectors().empty());
}

TEST_F(Places, ListsOfCpus) {
  cpu_set_t cpus = Cpus("0-3,8,10-11");
  EXPECT_EQ(CPU_COUNT(&cpus), 7);
  EXPECT_TRUE(CPU_ISSET(10, &cpus));
  EXPECT_FALSE(CPU_ISSET(9, &cpus));
  for (const char* wrong : {"", "x", "1-", "-1", "3-1", "1,,2", "1,", "1-2-3",
                            "1 2", "1024", "0-1024", "99999999999999999999"}) {
    EXPECT_FALSE(lane::rdma::ParseCpus(wrong, &cpus)) << wrong;
  }
}

TEST_F(Places, VectorOfABell) {
  MakeDevice("1");
  const std::vector<cpu_set_t> vectors = Vectors();  // of CPUs 7, 6, 5, 4
  const auto choose = [&](const char* allowed, int cpu, int bell) {
    return lane::rdma::ChooseVector(vectors, 4, Cpus(allowed), cpu, 1000, bell);
  };
  // Its own CPU's first, then the others', in turn.
  EXPECT_EQ(choose("0-7", 5, 0), 2u);
  EXPECT_EQ(choose("0-7", 5, 1), 3u);
  EXPECT_EQ(choose("0-7", 5, 2), 0u);
  EXPECT_EQ(choose("0-7", 5, 5), 3u);
  // None that interrupts where the process does not run.
  EXPECT_EQ(choose("6-7", 6, 0), 1u);
  EXPECT_EQ(choose("6-7", 6, 1), 0u);
  EXPECT_EQ(choose("6-7", 6, 2), 1u);
  // A CPU that no vector interrupts.
  EXPECT_EQ(choose("2-7", 2, 0), 2u);
  // Far from all of them, and where nothing is known: by the CPU.
  EXPECT_EQ(choose("0-3", 3, 2), 1u);
  EXPECT_EQ(lane::rdma::ChooseVector({}, 4, Cpus("0"), 3, 1000, 2), 1u);
  EXPECT_EQ(lane::rdma::ChooseVector({}, 4, Cpus("0"), -1, 1001, 2), 3u);
  // More interrupts than vectors.
  EXPECT_EQ(lane::rdma::ChooseVector(vectors, 2, Cpus("4-7"), 4, 0, 0), 0u);
}

TEST_F(Places, VectorOfAThread) {
  MakeDevice("1");
  std::vector<cpu_set_t> vectors = Vectors();  // of CPUs 7, 6, 5, 4
  const auto choose = [&](int cpu, int bell) {
    return lane::rdma::VectorOfCpu(vectors, 4, cpu, bell).value_or(99);
  };
  // Whatever its bell is.
  for (const int bell : {0, 1, 63}) {
    EXPECT_EQ(choose(7, bell), 0u);
    EXPECT_EQ(choose(5, bell), 2u);
  }
  EXPECT_EQ(choose(3, 0), 99u) << "no vector's";
  EXPECT_EQ(choose(-1, 0), 99u);
  EXPECT_EQ(choose(100'000, 0), 99u);
  // Where each interrupt may go anywhere, threads have different ones.
  vectors.assign(4, Cpus("0-7"));
  EXPECT_EQ(choose(5, 60), 0u);
  EXPECT_EQ(choose(5, 63), 3u);
}

// A process with a stream on the device.
Picture OnDevice(const char* device, const fs::path& sysfs) {
  Picture picture;
  ProcessPicture process;
  process.pid = 7;
  process.program = "chat";
  process.source = Source::kAnswer;
  StreamPicture stream;
  stream.is.lane = posix::SnapshotLane::kRdma;
  std::strcpy(stream.is.device, device);
  process.streams.push_back(stream);
  picture.processes.push_back(process);
  picture.counters[device] = CountersOf(device, sysfs);
  return picture;
}

TEST_F(Counters, StatShowsThemAndTheirChange) {
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "3");
  Write("mlx5_0/ports/2/hw_counters/out_of_sequence", "0");
  const Picture before = OnDevice("mlx5_0", root_);
  Write("mlx5_0/ports/1/hw_counters/out_of_sequence", "5");
  Picture now = OnDevice("mlx5_0", root_);
  AddRates(before, &now);
  const std::string text = AsText(now, false);
  EXPECT_NE(text.find("\ndevice mlx5_0 port 1: 5 (+2) out of sequence\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\ndevice mlx5_0 port 2: 0 out of sequence\n"),
            std::string::npos)
      << text;
  const nlohmann::json ports =
      nlohmann::json::parse(AsJson(now, true))["devices"][0]["ports"];
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0], nlohmann::json::parse(
                          R"({"port": 1, "counters": {"out_of_sequence": 5},
                              "changes": {"out_of_sequence": 2}})"));
  // Without a look before it there is no change.
  EXPECT_EQ(
      nlohmann::json::parse(AsJson(before, true))["devices"][0]["ports"][0]
          .count("changes"),
      0u);
  EXPECT_NE(AsPrometheus(now).find(
                "rcsock_port_events_total{device=\"mlx5_0\",port=\"1\",event="
                "\"out_of_sequence\"} 5\n"),
            std::string::npos)
      << AsPrometheus(now);
}

}  // namespace
}  // namespace rcsock::tools
