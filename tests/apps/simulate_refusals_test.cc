// What the command does not take: one line that names the flag or the file, and nothing has run before.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "apps/simulate_command.h"

namespace kvasir::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Args kRefusedSystem = {"--model", "opt-13b", "--device", "a100-40g"};
const Args kRefusedLoad = lengths(20, 10, 20);

struct Refused {
  Args args;
  std::vector<std::string> says;
};

using RefusalTest = CommandTest;

TEST_F(RefusalTest, OfSystems) {
  const std::vector<Refused> cases = {
      {{"--device", "a100-40g"}, {"--model: there are ", "opt-13b", "config.json"}},
      {{"--model", "opt-13b"}, {"--device: there are ", "a100-40g", "profile --full"}},
      {{"--model", "opt-14b", "--device", "a100-40g"}, {"'opt-14b'", "opt-13b"}},
      {{"--model", "opt-13b", "--device", "a100"}, {"'a100'", "a100-40g"}},
      {kRefusedSystem + Args{"--engine-overhead", "rust"}, {"'rust'", "kvasir"}},
      {kRefusedSystem + Args{"--scheduling-policy", "lifo"}, {"'lifo'", "sarathi"}},
      {kRefusedSystem + Args{"--scheduling-policy", "vllm,lifo"}, {"'lifo'"}},
      {kRefusedSystem + Args{"--scheduling-policy", "vllm,sarathi,vllm"},
       {"--scheduling-policy", "'vllm'", "twice"}},
      {kRefusedSystem + Args{"--length-predictor", "tarot"}, {"tarot", "oracle"}},
      {{"--model", "opt-66b", "--device", "a100-40g"}, {"opt-66b does not fit 1 x a100-40g", " more "}},
      {kRefusedSystem + Args{"--gpu-memory-utilization", "0.3"},
       {"opt-13b does not fit", "30 % of its memory"}},
      {kRefusedSystem + Args{"--tensor-parallel-size", "3"}, {"tensor"}},
      {kRefusedSystem + Args{"--pipeline-parallel-size", "41"}, {"pipeline"}},
      {kRefusedSystem + Args{"--kv-cache-memory-bytes", "39GiB"},
       {"--kv-cache-memory-bytes 39.00 GiB", "room for"}},
      {kRefusedSystem + Args{"--kv-cache-memory-bytes", "1MiB"},
       {"--kv-cache-memory-bytes 1.00 MiB", "--block-size"}},
      {kRefusedSystem + Args{"--max-num-seqs", "4000"}, {"--max-num-batched-tokens", "--max-num-seqs 4000"}},
      {kRefusedSystem + Args{"--max-model-len", "100000"}, {"--max-model-len 100000"}},
      {kRefusedSystem + Args{"--link-gbytes-per-s", "20"}, {"--link-gbytes-per-s", "--kv-offloading-size"}},
      {kRefusedSystem + Args{"--compare", "x.json", "--html", "x.html"}, {"--compare: kvasir bench"}},
  };
  for (const Refused& c : cases) {
    const std::string line = refusal(c.args + kRefusedLoad);
    for (const std::string& text : c.says) EXPECT_THAT(line, HasSubstr(text));
  }
}

TEST_F(RefusalTest, OfQuestions) {
  const Args system = kRefusedSystem + kRefusedLoad;
  const std::vector<Refused> cases = {
      {{"--request-rate", "1", "--explain", "20"}, {"--explain 20", "requests 0 to 19"}},
      {{"--request-rate", "1,2", "--explain", "2"}, {"--explain: needs one policy"}},
      {{"--request-rate", "1", "--seeds", "2", "--explain", "2"}, {"--explain: needs one policy"}},
      {{"--scheduling-policy", "vllm,orca", "--explain", "2"}, {"--explain: needs one policy"}},
      {{"--request-rate", "0.5x:1x:0.1x", "--log-plans", in_folder("p")}, {"--log-plans: needs one policy"}},
      {{"--request-rate", "1,2,1"}, {"--request-rate: 1 is given twice"}},
      {{"--request-rate", "1x,1x"}, {"--request-rate: ", "is given twice"}},
      {{"--request-rate", "0.00001", "--num-prompts", "100000"}, {"--request-rate 1e-05", "to arrive"}},
      {{"--request-rate", "fast"}, {"--request-rate", "fast"}},
      {{"--num-prompts", "20000001"}, {"--num-prompts 20000001"}},
      {{"--num-prompts", "10000000", "--random-output-len", "1000"}, {"--num-prompts 10000000", "2e+08"}},
      {{"--goodput", "speed:3"}, {"--goodput", "speed"}},
      {{"--workload", "poems"}, {"poems", "sharegpt"}},
      {{"--save-detailed"}, {"--save-detailed", "--save-result"}},
      {{"--save-result", "--result-dir", write("file", "") + "/below"}, {"--result-dir"}},
      {{"--html", write("file", "") + "/below/x.html"}, {"--html"}},
      {{"--request-rate", "1", "--log-plans", write("file", "") + "/below"}, {"below"}},
  };
  for (const Refused& c : cases) {
    const std::string line = refusal(system + c.args);
    for (const std::string& text : c.says) EXPECT_THAT(line, HasSubstr(text));
  }
}

TEST_F(RefusalTest, BeforeAnythingHasRun) {
  for (const Args& wrong :
       {Args{"--request-rate", "1", "--explain", "20"}, Args{"--request-rate", "0.5x,1x", "--explain", "2"},
        Args{"--scheduling-policy", "vllm,lifo"}, Args{"--num-prompts", "20000001"},
        Args{"--find-effective-throughput", "90"}, Args{"--request-rate", "1,1"},
        Args{"--request-rate", "1e-6", "--num-prompts", "100000"}, Args{"--length-predictor", "laplace:0"}}) {
    const Ran ran = command(kRefusedSystem + kRefusedLoad + wrong);
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "") << ran.err;
  }
}

TEST_F(RefusalTest, OfTraces) {
  const auto refused = [&](const std::string& text, const Args& more = {}) {
    return refusal(kRefusedSystem + Args{"--workload", "trace", "--dataset-path", write("trace.csv", text)} +
                   more);
  };
  EXPECT_THAT(refusal(kRefusedSystem + Args{"--workload", "trace"}), HasSubstr("--dataset-path"));
  EXPECT_THAT(refusal(kRefusedSystem + Args{"--workload", "trace", "--dataset-path", in_folder("none.csv")}),
              HasSubstr("none.csv"));
  EXPECT_THAT(refused("arrival,prompt,output\n0,10,10\n1,,10\n"),
              HasSubstr("trace.csv:3: the prompt is missing"));
  EXPECT_THAT(refused("arrival,prompt,output\n0,10,10\n1,10\n"),
              HasSubstr("trace.csv:3: the output is missing"));
  EXPECT_THAT(refused("arrival,prompt,output\n0,10,10\n,10,10\n"),
              HasSubstr("trace.csv:3: the arrival is missing"));
  EXPECT_THAT(refused("arrival,prompt,output\n-1,10,10\n"), HasSubstr("trace.csv:2: the arrival must be"));
  EXPECT_THAT(refused("arrival,prompt,output\n5,10,10\n4,10,10\n"), HasSubstr("trace.csv:3:"));
  EXPECT_THAT(refused("arrival,prompt,output\n0,10,0\n"), HasSubstr("trace.csv:2: the output must be"));
  EXPECT_THAT(refused("arrival,prompt\n0,10\n"), HasSubstr("trace.csv:1: no column 'output'"));
  EXPECT_THAT(refused("arrival,prompt,output\n0,10,10\n", {"--num-prompts", "2"}),
              HasSubstr("--num-prompts 2: the trace has 1 requests"));
  EXPECT_THAT(refused("prompt,output\n10,10\n"), HasSubstr("--request-rate"));
  EXPECT_THAT(refused(""), HasSubstr("trace.csv"));
  EXPECT_THAT(refused("arrival,prompt,output\n"), HasSubstr("trace.csv"));
}

TEST_F(RefusalTest, OfMachines) {
  HostDevice device = clockwork(tables(0.010));
  device.links[index_of(Tier::kDevice)][index_of(Tier::kHost)] = {1e-5, 1e-10};
  const Args whole = host(device, 256) + kRefusedLoad;
  const std::string path = whole[1];
  const auto refused = [&](const Args& more) { return refusal(whole + more); };
  EXPECT_EQ(command(whole).code, 0);
  EXPECT_EQ(command(whole + Args{"--model", "clockwork"}).code, 0);
  EXPECT_THAT(refusal(Args{"--device", path} + kRefusedLoad),
              AllOf(HasSubstr(path), HasSubstr("--kv-cache-memory-bytes")));
  EXPECT_THAT(refused({"--model", "opt-13b"}), AllOf(HasSubstr("--model opt-13b"), HasSubstr("clockwork")));
  EXPECT_THAT(refused({"--tensor-parallel-size", "2"}), HasSubstr("--tensor-parallel-size"));
  EXPECT_THAT(refused({"--price", write("steps.csv", "decode_rows\n1\n")}),
              AllOf(HasSubstr("--price"), HasSubstr(path)));
  EXPECT_THAT(refused({"--max-model-len", "5000"}), HasSubstr("--max-model-len 5000"));
  // One way is not enough: what goes there comes back.
  EXPECT_THAT(refused({"--kv-offloading-size", "1"}),
              AllOf(HasSubstr(path), HasSubstr("its link to the host was not measured"),
                    HasSubstr("--link-gbytes-per-s")));
  EXPECT_EQ(command(whole + Args{"--kv-offloading-size", "1", "--link-gbytes-per-s", "10"}).code, 0);
  std::swap(device.links[index_of(Tier::kDevice)][index_of(Tier::kHost)],
            device.links[index_of(Tier::kHost)][index_of(Tier::kDevice)]);
  host(device, 256);
  EXPECT_THAT(refused({"--kv-offloading-size", "1"}), HasSubstr("its link to the host was not measured"));
  device.links[index_of(Tier::kDevice)][index_of(Tier::kHost)] = {1e-5, 1e-10};
  host(device, 256);
  EXPECT_EQ(command(whole + Args{"--kv-offloading-size", "1"}).code, 0);
  EXPECT_THAT(refused({"--kv-offloading-size", "1", "--kv-offloading-dir", in_folder("disk"),
                       "--kv-offloading-disk-size", "1"}),
              HasSubstr("its link to the disk was not measured"));
  write("truth.json", "{");
  EXPECT_THAT(refused({}), AllOf(HasSubstr(path), HasSubstr("profile --full")));
}

TEST_F(RefusalTest, OfFoldersInPlaceOfFiles) {
  const std::string folder = folder_.string();
  EXPECT_EQ(refusal({"--experiment", folder}), folder + ": cannot be read");
  EXPECT_EQ(refusal(kRefusedSystem + Args{"--price", folder}), folder + ": cannot be read");
  EXPECT_THAT(refusal({"--model", "opt-13b", "--device", folder}), HasSubstr(folder));
  EXPECT_THAT(refusal({"--model", folder, "--device", "a100-40g"}), HasSubstr(folder));
  EXPECT_THAT(refusal(kRefusedSystem + Args{"--workload", "trace", "--dataset-path", folder}),
              HasSubstr(folder));
  EXPECT_THAT(refusal(kRefusedSystem + Args{"--workload", "sharegpt", "--dataset-path", folder}),
              HasSubstr(folder));
}

TEST_F(RefusalTest, OfAMachineThatTakesNoTime) {
  EXPECT_THAT(refusal(host(tables(0), 256) + kRefusedLoad), HasSubstr("truth.json"));
}

TEST_F(RefusalTest, OfPrices) {
  const Args price = kRefusedSystem + Args{"--price", in_folder("steps.csv")};
  EXPECT_THAT(refusal(price), HasSubstr("steps.csv"));
  write("steps.csv", "rows\n1\n");
  EXPECT_THAT(refusal(price), HasSubstr("steps.csv:1: column 'rows'"));
  write("steps.csv", "decode_rows,decode_context\n4,400\n");
  EXPECT_THAT(refusal({"--device", "a100-40g", "--price", in_folder("steps.csv")}), HasSubstr("--model"));
  EXPECT_EQ(command(price).code, 0);
}

}  // namespace
}  // namespace kvasir::test
