// Replays schedules in GOAL on a network that SimGrid simulates, and prints how long each takes, in seconds.
//
//   replay TOPOLOGY LATENCY BANDWIDTH SEND RECEIVE SEND_PER_BYTE RECEIVE_PER_BYTE SLICE FILE...
//
// TOPOLOGY: flat, fat-tree (two levels, with half as much bandwidth upwards) or dragonfly. Times are in seconds, BANDWIDTH in bytes a
// second. A rank has a host with a port and one core. A send occupies the core and returns; the port sends one message after the
// other, whether or not its receiver waits, and messages on one link share it. A receive waits for the whole message, which comes
// LATENCY later than its last byte has left (half of it for each link on the way), and then occupies the core.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <simgrid/s4u.hpp>

namespace sg4 = simgrid::s4u;

struct Operation {
  enum { SEND, RECEIVE, CALCULATE } kind;
  double amount; // bytes, or seconds
  int peer = 0, tag = 0;
};
using Chain = std::vector<Operation>;

struct Costs {
  double latency, bandwidth, send, receive, send_per_byte, receive_per_byte, slice;
};

// The chains of each rank. Every operation requires the one before it, unless it begins a chain.
static std::vector<std::vector<Chain>> read_goal(const char *path) {
  std::ifstream file(path);
  std::vector<std::vector<Chain>> ranks;
  std::string line;
  Operation operation{};
  bool pending = false;
  auto begin = [&](bool chained) {
    if (!pending) return;
    if (!chained) ranks.back().emplace_back();
    ranks.back().back().push_back(operation);
    pending = false;
  };
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string first, what;
    if (!(words >> first) || first == "//" || first == "num_ranks") continue;
    if (first == "rank") { ranks.emplace_back(); continue; }
    if (first == "}") { begin(false); continue; }
    words >> what;
    if (what == "requires") { begin(true); continue; }
    begin(false);
    std::string amount, word;
    words >> amount;
    operation.amount = std::strtod(amount.c_str(), nullptr);
    if (what == "calc") {
      operation.kind = Operation::CALCULATE;
      operation.amount *= 1e-9;
    } else {
      operation.kind = what == "send" ? Operation::SEND : Operation::RECEIVE;
      words >> word >> operation.peer >> word >> operation.tag;
    }
    pending = true;
  }
  return ranks;
}

// One host for each rank.
static std::vector<sg4::Host *> build(const std::string &topology, size_t ranks, const Costs &costs) {
  // Ranks reckon the latency themselves, or a port would wait for it between messages.
  double latency = 0;
  std::vector<sg4::Host *> hosts(ranks);
  if (topology == "flat") {
    auto *zone = sg4::create_star_zone("all");
    for (size_t rank = 0; rank < ranks; rank++) {
      auto name = std::to_string(rank);
      hosts[rank] = zone->create_host("host" + name, 1.0)->seal();
      auto *up = zone->create_link("up" + name, costs.bandwidth)->set_latency(latency)->seal();
      auto *down = zone->create_link("down" + name, costs.bandwidth)->set_latency(latency)->seal();
      zone->add_route(hosts[rank]->get_netpoint(), nullptr, nullptr, nullptr, {sg4::LinkInRoute(up)}, false);
      zone->add_route(nullptr, hosts[rank]->get_netpoint(), nullptr, nullptr, {sg4::LinkInRoute(down)}, false);
    }
    zone->seal();
    return hosts;
  }
  auto leaf = [&](sg4::NetZone *zone, const std::vector<unsigned long> &, unsigned long id) {
    auto *host = zone->create_host("host" + std::to_string(id), 1.0)->seal();
    if (id < ranks) hosts[id] = host;
    return std::make_pair(host->get_netpoint(), static_cast<simgrid::kernel::routing::NetPoint *>(nullptr));
  };
  sg4::ClusterCallbacks callbacks(leaf);
  auto *root = sg4::create_full_zone("root");
  sg4::NetZone *zone;
  if (topology == "fat-tree") {
    // Two links up for four hosts.
    unsigned leaves = 4, switches = (ranks + leaves - 1) / leaves;
    zone = sg4::create_fatTree_zone("all", root, {2, {leaves, std::max(1u, switches)}, {1, 2}, {1, 1}}, callbacks,
                                    costs.bandwidth, latency, sg4::Link::SharingPolicy::SPLITDUPLEX);
  } else {
    unsigned groups = (ranks + 15) / 16;
    // Groups of two chassis with four routers of two hosts each.
    zone = sg4::create_dragonfly_zone("all", root, {{std::max(1u, groups), 1}, {2, 1}, {4, 1}, 2}, callbacks, costs.bandwidth,
                                      latency, sg4::Link::SharingPolicy::SPLITDUPLEX);
  }
  zone->seal();
  return hosts;
}

struct Message {
  sg4::Mailbox *to;
  sg4::Host *host;
  double bytes;
  // When it is there, once it has left.
  double arrives = -1;
};

// A processor. Messages go before calculations, which they interrupt after a slice; an interrupted one goes on before others.
struct Core {
  double slice;
  bool taken = false;
  std::deque<sg4::SemaphorePtr> messages, calculations;

  void take(std::deque<sg4::SemaphorePtr> &queue) {
    if (!taken) {
      taken = true;
      return;
    }
    auto turn = sg4::Semaphore::create(0);
    queue.push_back(turn);
    turn->acquire();
  }

  // Whoever is next has it.
  void give() {
    auto &queue = messages.empty() ? calculations : messages;
    taken = !queue.empty();
    if (taken) {
      auto next = queue.front();
      queue.pop_front();
      next->release();
    }
  }

  void pass(double seconds) {
    if (seconds <= 0) return;
    take(messages);
    sg4::this_actor::sleep_for(seconds);
    give();
  }

  void calculate(double seconds) {
    take(calculations);
    for (double left = seconds; left > 0; left -= slice) {
      sg4::this_actor::sleep_for(std::min(left, slice));
      if (!messages.empty() && left > slice) {
        auto turn = sg4::Semaphore::create(0);
        calculations.push_front(turn);
        give();
        turn->acquire();
      }
    }
    give();
  }
};

struct Rank {
  Core core{};
  std::deque<Message *> port;
  sg4::SemaphorePtr sent = sg4::Semaphore::create(0);
};

static void run_port(Rank *rank, const Costs *costs) {
  for (;;) {
    rank->sent->acquire();
    auto *message = rank->port.front();
    rank->port.pop_front();
    std::vector<sg4::Link *> links;
    double none = 0;
    sg4::this_actor::get_host()->route_to(message->host, links, &none);
    message->to->put(message, static_cast<uint64_t>(message->bytes));
    message->arrives = sg4::Engine::get_clock() + costs->latency / 2 * static_cast<double>(links.size());
  }
}

static std::string mailbox(size_t from, size_t to, int tag) {
  return std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(tag);
}

static void run_chain(const Chain *chain, std::vector<Rank> *ranks, const std::vector<sg4::Host *> *hosts, size_t me,
                      const Costs *costs) {
  auto &rank = (*ranks)[me];
  for (const auto &operation : *chain) {
    switch (operation.kind) {
    case Operation::SEND: {
      rank.core.pass(costs->send + operation.amount * costs->send_per_byte);
      auto *to = sg4::Mailbox::by_name(mailbox(me, operation.peer, operation.tag));
      rank.port.push_back(new Message{to, (*hosts)[operation.peer], operation.amount});
      rank.sent->release();
      break;
    }
    case Operation::RECEIVE: {
      auto *message = sg4::Mailbox::by_name(mailbox(operation.peer, me, operation.tag))->get<Message>();
      // Both wake up at the same time.
      while (message->arrives < 0) sg4::this_actor::yield();
      double arrives = message->arrives;
      delete message;
      sg4::this_actor::sleep_until(arrives);
      rank.core.pass(costs->receive + operation.amount * costs->receive_per_byte);
      break;
    }
    case Operation::CALCULATE:
      rank.core.calculate(operation.amount);
      break;
    }
  }
}

int main(int count, char **arguments) {
  if (count < 10) return 2;
  std::string topology = arguments[1];
  double figures[7];
  for (int at = 0; at < 7; at++) figures[at] = std::strtod(arguments[2 + at], nullptr);
  Costs costs{figures[0], figures[1], figures[2], figures[3], figures[4], figures[5], figures[6]};
  for (int at = 9; at < count; at++) {
    // SimGrid simulates once in a process.
    std::fflush(stdout);
    if (fork() == 0) {
      const char *options[] = {"replay", "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/bandwidth-factor:1",
                               "--cfg=network/latency-factor:1", "--cfg=network/weight-S:0", "--cfg=network/crosstraffic:0",
                               "--cfg=surf/precision:1e-12", "--cfg=maxmin/precision:1e-9", "--log=root.threshold:error",
                               "--cfg=contexts/stack-size:64"};
      int given = sizeof options / sizeof *options;
      sg4::Engine engine(&given, const_cast<char **>(options));
      auto schedule = read_goal(arguments[at]);
      auto hosts = build(topology, schedule.size(), costs);
      std::vector<Rank> ranks(schedule.size());
      for (size_t me = 0; me < schedule.size(); me++) {
        ranks[me].core.slice = costs.slice;
        sg4::Actor::create("port", hosts[me], run_port, &ranks[me], &costs)->daemonize();
        for (const auto &chain : schedule[me]) {
          auto actor = sg4::Actor::create("lane", hosts[me], run_chain, &chain, &ranks, &hosts, me, &costs);
          // Messages travel although nobody waits for them yet.
          for (const auto &operation : chain)
            if (operation.kind == Operation::RECEIVE)
              sg4::Mailbox::by_name(mailbox(operation.peer, me, operation.tag))->set_receiver(actor);
        }
      }
      engine.run();
      std::printf("%.9g\n", sg4::Engine::get_clock());
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    wait(&status);
    if (status != 0) std::printf("-\n");
  }
}
