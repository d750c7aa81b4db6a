// Where a query's time went: its slowest chain of tasks, walked back from the answer, in parts that add up to all of it.

import { duration, percent, titled } from "./dom.js";

/** The parts of a query's time, in the order of a task's life. */
export const PARTS = {
  queue: "its turn at the service",
  decode: "decoding the picture",
  wait: "waiting to be sent",
  cold: "cold starts",
  network: "the way to the functions and back",
  halo: "waiting for halos",
  read: "reading pieces",
  compute: "computing",
  write: "writing pieces",
  again: "attempts that failed or were late",
  driver: "the driver between stages",
};

const ADVICE = {
  queue: "More queries came than may run at once: add drivers, or raise SERFER_API_IN_FLIGHT.",
  cold: "The next query finds these environments warm; `serfer deploy warm` starts them before they are needed.",
  wait: "The functions' concurrency was used up, or the driver had more to do than its processor could.",
  network: "Every stage pays for Lambda's own share and the network's once: fewer stages would pay less.",
  halo: "Tiles waited for one another: even grids, warm functions and a faster store would help.",
  read: "A store nearer to the functions, or fewer stages, would help.",
  write: "A store nearer to the functions, or fewer stages, would help.",
  compute: "On Lambda, more memory gives a function more processor.",
  again: "Some attempts had to be made again: the timeline shows which.",
};

/** One attempt of a task in its parts, in ms: what it waited, and how its invocation was spent. */
export function split(task) {
  const started = task.started_ms ?? task.ended_ms ?? task.asked_ms;
  const wait = Math.max(0, started - task.asked_ms);
  const whole = Math.max(0, (task.ended_ms ?? started) - started);
  let left = whole;
  const take = (ms) => {
    const taken = Math.min(ms ?? 0, left);
    left -= taken;
    return taken;
  };
  const compute = take(task.compute_ms); // a cold start gives way first: an environment may start before its task comes
  const halo = take(task.wait_ms);
  const read = take((task.read_ms ?? 0) - (task.wait_ms ?? 0));
  const write = take(task.write_ms);
  const cold = take(task.init_ms);
  return { wait, cold, halo, read, compute, write, network: left };
}

const answered = (task) => task.outcome === "answered" && task.ended_ms !== null;
const stagesOf = (timeline) => [...new Set(timeline.tasks.map((task) => task.stage))].sort((a, b) => a - b);

/** For each stage, its slowest task: the one that the next stage waited for. */
export function slowest(timeline) {
  return stagesOf(timeline).flatMap((stage) => {
    const tasks = timeline.tasks.filter((task) => task.stage === stage && answered(task));
    return tasks.length ? [tasks.reduce((a, b) => (b.ended_ms > a.ended_ms ? b : a))] : [];
  });
}

/** The slowest chain of tasks, last first: of a gang, the stages of the member that ended last. */
function chain(timeline) {
  const last = [];
  for (const task of slowest(timeline).reverse()) {
    const after = last.at(-1);
    const member = after !== undefined && task.gang != null && task.gang === after.gang;
    const own = (one) => one.stage === task.stage && one.tile === after.tile && answered(one);
    const next = member ? timeline.tasks.find(own) : task; // a member may have no tile of a stage
    if (next) last.push(next);
  }
  return last;
}

/** Return the ms of each of PARTS; together they are `answered_ms`. */
export function account(timeline) {
  const spent = Object.fromEntries(Object.keys(PARTS).map((part) => [part, 0]));
  spent.queue = timeline.queue_ms;
  spent.decode = timeline.decode_ms;
  let until = timeline.answered_ms;
  for (const task of chain(timeline)) {
    const mine = timeline.tasks.filter((one) => one.stage === task.stage && one.tile === task.tile);
    const first = Math.min(...mine.map((one) => one.asked_ms));
    spent.driver += Math.max(0, until - task.ended_ms);
    spent.again += task.asked_ms - first;
    for (const [part, ms] of Object.entries(split(task))) spent[part] += ms;
    until = first;
  }
  spent.driver += Math.max(0, until - spent.queue - spent.decode);
  return spent;
}

/** Say in a few sentences why a query took what it took. */
export function why(timeline, names, target) {
  const spent = account(timeline);
  const total = timeline.answered_ms;
  const source = target === "gpu" ? "by an instance of the pool, with the whole network" : "from an answer that was kept";
  if (!timeline.tasks.length) return `Answered in ${duration(total)}, ${source}: no stage ran.`;
  const [first, second] = Object.entries(spent).sort((a, b) => b[1] - a[1]);
  const most = `Of ${duration(total)}, ${percent(first[1] / total)} was ${PARTS[first[0]]}, then ${percent(second[1] / total)} ${PARTS[second[0]]}.`;
  return [most, longestStage(timeline, names), ADVICE[first[0]]].filter(Boolean).join(" ");
}

/** Name the stage that took longest, and its straggler if it has one. */
function longestStage(timeline, names) {
  const spans = slowest(timeline).map((task) => {
    const tasks = timeline.tasks.filter((one) => one.stage === task.stage);
    const ends = tasks.filter(answered).map((one) => one.ended_ms).sort((a, b) => a - b);
    const start = Math.min(...tasks.map((one) => one.asked_ms));
    return { task, took: task.ended_ms - start, typical: ends[Math.floor((ends.length - 1) / 2)] - start };
  });
  const { task, took, typical } = spans.reduce((a, b) => (b.took > a.took ? b : a));
  const late = took > 1.5 * typical ? `: its tile ${task.tile} was ready after ${duration(took)}, half of them after ${duration(typical)}` : "";
  return `${titled(names[task.stage] ?? `stage-${task.stage}`)} took longest, ${duration(took)}${late}.`;
}

/** What each tile of each stage was doing `moment` ms after the query came. */
export function statesAt(timeline, sizes, moment) {
  return sizes.map((size, stage) =>
    Array.from({ length: size }, (_, tile) => {
      const tries = timeline.tasks.filter((task) => task.stage === stage && task.tile === tile);
      if (tries.some((task) => answered(task) && task.ended_ms <= moment)) return "done";
      return tries.some((task) => task.asked_ms <= moment) ? "running" : "waiting";
    }),
  );
}
